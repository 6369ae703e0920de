"""transformers' models for detection and segmentation, very small, with weights drawn at random.

``MODELS`` has a function for each name: it returns (model, its arguments, the name of the output to look at).
Nothing is downloaded. Head widths are 16; feature maps have 8 x 12, 4 x 6 and 2 x 3 pixels, but where said.
"""

import sys

import pytest
import torch

try:
    import torchvision  # noqa: F401
except ImportError:
    pass
except RuntimeError:  # not built for this PyTorch; transformers does without, if it finds none
    sys.modules["torchvision"] = None
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LAYERS = {"encoder_layers": 2, "decoder_layers": 2}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIZES = {"d_model": 32, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_queries": 5}
STAGES = ["stage2", "stage3", "stage4"]
RESNET = {"embedding_size": 8, "hidden_sizes": [8] * 4, "depths": [1] * 4, "layer_type": "basic"}


def pixels():
    return {"pixel_values": torch.randn(2, 3, 64, 96)}


def swin(*stages):
    return transformers.SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1] * 4, num_heads=[1] * 4, window_size=2,
        out_features=list(stages))  # fmt: skip


def deformable_detr():
    backbone = transformers.ResNetConfig(out_features=STAGES, **RESNET)
    config = transformers.DeformableDetrConfig(
        use_timm_backbone=False, backbone_config=backbone, **LAYERS, **HEADS, **SIZES)  # fmt: skip
    return transformers.DeformableDetrModel(config), pixels(), "last_hidden_state"


def grounding_dino(prefix):
    text = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    config = getattr(transformers, f"{prefix}Config")(
        use_timm_backbone=False, backbone_config=swin(*STAGES), text_config=text, **LAYERS, **HEADS, **SIZES
    )
    inputs = {**pixels(), "input_ids": torch.tensor([[1, 5, 6, 2]] * 2)}
    return getattr(transformers, f"{prefix}Model")(config), inputs, "last_hidden_state"


MASKS = {
    "hidden_dim": 32, "encoder_feedforward_dim": 16, "dim_feedforward": 16, "num_attention_heads": 2,
    "num_queries": 5, "common_stride": 4, **LAYERS}  # fmt: skip


def mask2former():
    config = transformers.Mask2FormerConfig(
        backbone_config=swin("stage1", *STAGES), feature_size=32, mask_feature_size=32, **MASKS)  # fmt: skip
    return transformers.Mask2FormerModel(config), pixels(), "transformer_decoder_last_hidden_state"


def oneformer():
    config = transformers.OneFormerConfig(
        backbone_config=swin("stage1", *STAGES), conv_dim=32, mask_dim=32, text_encoder_width=16,
        text_encoder_context_length=8, text_encoder_num_layers=1, text_encoder_vocab_size=50,
        text_encoder_proj_layers=1, text_encoder_n_ctx=4, task_seq_len=8, query_dec_layers=1, **MASKS
    )  # fmt: skip
    inputs = {**pixels(), "task_inputs": torch.ones(2, 8)}
    return transformers.OneFormerModel(config), inputs, "transformer_decoder_object_queries"


def hgnet(*stages):
    eight, one = [8] * 4, [1] * 4
    return transformers.HGNetV2Config(
        embedding_size=8, stem_channels=[3, 8, 8], depths=one, hidden_sizes=eight, stage_in_channels=eight,
        stage_mid_channels=eight, stage_out_channels=eight, stage_num_blocks=one, stage_numb_of_layers=one,
        out_features=list(stages))  # fmt: skip


def rt_detr(prefix, first=(), **more):
    """``first`` are stages of the backbone before STAGES."""
    backbone = transformers.RTDetrResNetConfig(out_features=STAGES, **RESNET)
    if not prefix.startswith("RT"):
        backbone = hgnet(*first, *STAGES)
    config = getattr(transformers, f"{prefix}Config")(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[8] * 3,
        decoder_in_channels=[32] * 3, num_denoising=0, **LAYERS, **HEADS, **SIZES, **more)  # fmt: skip
    return getattr(transformers, f"{prefix}Model")(config), pixels(), "last_hidden_state"


def lw_detr(prefix):
    """Their backbones see patches of 16 x 16 pixels in windows; one level, 4 x 4."""
    sizes = {"num_attention_heads": 2, "num_windows": 4, "image_size": 64, "num_hidden_layers": 2}
    if prefix == "LwDetr":
        backbone = transformers.LwDetrViTConfig(
            hidden_size=16, window_block_indices=[0], out_indices=[1], **sizes)  # fmt: skip
    else:
        sizes["num_windows"] = 2
        backbone = transformers.RfDetrDinov2Config(
            hidden_size=32, patch_size=16, out_features=["stage1", "stage2"], **sizes)  # fmt: skip
    config = getattr(transformers, f"{prefix}Config")(
        backbone_config=backbone, projector_scale_factors=[1.0], d_model=32, decoder_ffn_dim=16, num_queries=5,
        decoder_layers=2, decoder_self_attention_heads=2, decoder_cross_attention_heads=2, group_detr=1,
        dropout=0.0)  # fmt: skip
    inputs = {"pixel_values": torch.randn(2, 3, 64, 64)}
    return getattr(transformers, f"{prefix}Model")(config), inputs, "last_hidden_state"


def omdet_turbo():
    """Of 8 x 8, 4 x 4 and 2 x 2 pixels."""
    text = transformers.CLIPTextConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, bos_token_id=0, eos_token_id=49)  # fmt: skip
    config = transformers.OmDetTurboConfig(
        use_timm_backbone=False, backbone_config=swin(*STAGES), text_config=text, image_size=64,
        apply_layernorm_after_vision_backbone=False, encoder_in_channels=[16, 32, 64], num_queries=5,
        vision_features_channels=[32] * 3, encoder_hidden_dim=32, decoder_hidden_dim=32, encoder_layers=1,
        encoder_attention_heads=2, decoder_num_heads=2, decoder_num_layers=2, encoder_dim_feedforward=16,
        decoder_dim_feedforward=16, task_encoder_hidden_dim=16, class_embed_dim=16, text_projection_in_dim=16,
        text_projection_out_dim=16)  # fmt: skip
    classes = torch.tensor([[1, 5, 49], [1, 6, 49]] * 2)
    inputs = {
        "pixel_values": torch.randn(2, 3, 64, 64), "classes_input_ids": classes,
        "classes_attention_mask": torch.ones_like(classes), "tasks_input_ids": classes[:2],
        "tasks_attention_mask": torch.ones_like(classes[:2]), "classes_structure": torch.tensor([2, 2]),
    }  # fmt: skip
    model = transformers.OmDetTurboForObjectDetection(config)
    model.language_backbone.requires_grad_(False)  # it keeps what it computed, graph and all, for the next call
    return model, inputs, "decoder_class_logits"


MODELS = {
    "deformable_detr": deformable_detr,
    "grounding_dino": lambda: grounding_dino("GroundingDino"),
    "mm_grounding_dino": lambda: grounding_dino("MMGroundingDino"),
    "mask2former": mask2former,
    "oneformer": oneformer,
    "rt_detr": lambda: rt_detr("RTDetr"),
    "rt_detr_v2": lambda: rt_detr("RTDetrV2"),
    "rt_detr_v2 discrete": lambda: rt_detr("RTDetrV2", decoder_method="discrete"),
    "d_fine": lambda: rt_detr("DFine", decoder_n_points=[3, 6, 3]),
    "deimv2": lambda: rt_detr("Deimv2", decoder_n_points=[3, 6, 3]),
    "lw_detr": lambda: lw_detr("LwDetr"),
    "rf_detr": lambda: lw_detr("RfDetr"),
    "omdet_turbo": omdet_turbo,
    "pp_doclayout_v2": lambda: rt_detr("PPDocLayoutV2"),
    "pp_doclayout_v3": lambda: rt_detr("PPDocLayoutV3", ["stage1"], x4_feat_dim=8),
    "pp_doclayout_v4": lambda: rt_detr("PPDocLayoutV4"),
}


def drawn(name, dtype=torch.float32, seed=0):
    """(model for evaluation; its arguments; the output's name). What is sampled is not almost nothing, as
    it is with the models' own first weights, and offsets and weights differ from query to query."""
    torch.manual_seed(seed)
    model, inputs, output = MODELS[name]()
    for name, parameter in model.named_parameters():
        if "sampling_offsets.weight" in name or "attention_weights.weight" in name:
            torch.nn.init.normal_(parameter, std=0.3)
        elif parameter.ndim == 4:  # of convolutions
            torch.nn.init.kaiming_normal_(parameter)
    inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    return model.eval().to(dtype), inputs, output


def attentions(model):
    """How many modules of a model call the operator."""
    return sum(hasattr(module, "sampling_offsets") for module in model.modules())
