"""transformers' models for detection and segmentation, very small, with weights drawn at random.

``MODELS`` has a function for each name: it returns (model, its arguments, the name of the output to look at).
Nothing is downloaded. Head widths are 16; feature maps have 8 x 12, 4 x 6 and 2 x 3 pixels.
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


def rt_detr(prefix, **more):
    backbone = transformers.RTDetrResNetConfig(out_features=STAGES, **RESNET)
    if not prefix.startswith("RT"):
        eight, one = [8] * 4, [1] * 4
        backbone = transformers.HGNetV2Config(
            embedding_size=8, stem_channels=[3, 8, 8], depths=one, hidden_sizes=eight, stage_in_channels=eight,
            stage_mid_channels=eight, stage_out_channels=eight, stage_num_blocks=one, stage_numb_of_layers=one,
            out_features=STAGES)  # fmt: skip
    config = getattr(transformers, f"{prefix}Config")(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[8] * 3,
        decoder_in_channels=[32] * 3, num_denoising=0, **LAYERS, **HEADS, **SIZES, **more)  # fmt: skip
    return getattr(transformers, f"{prefix}Model")(config), pixels(), "last_hidden_state"


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
