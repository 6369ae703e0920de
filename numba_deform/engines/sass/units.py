"""What an SM of Hopper has: the unit that each instruction goes to, rates, and the constants of ``sm``.

But for ``fill`` none of the numbers comes from a time that the model is compared with
(bench/PREDICTED.md)."""

import re
from collections import namedtuple

# The units that instructions go to, by the beginnings of opcodes (Nsight Compute's names of pipes).
PIPES = {
    "lsu": "LDG STG LDS STS LD ST LDL STL LDGSTS LDSM STSM ATOMG ATOMS ATOM REDG RED SHFL SYNCS STAS "
           "REDAS ARRIVES",
    "tma": "UTMALDG UTMASTG UTMAREDG UBLKCP UBLKRED UBLKPF UTMAPF",
    "tensor": "HMMA IMMA QMMA HGMMA", "fma": "FADD FMUL FFMA IMAD HADD2 HMUL2 HFMA2 HMNMX2 HSETP2 IDP",
    "fp64": "DADD DMUL DFMA DMNMX DSETP", "xu": "MUFU F2I I2F FRND F2F POPC BREV FLO I2FP",
    "cbu": "BRA BSSY BSYNC BREAK EXIT WARPSYNC CALL RET BAR NANOSLEEP UCGABAR_ARV UCGABAR_WAIT",
}  # fmt: skip
PIPE_OF = {stem: pipe for pipe, stems in PIPES.items() for stem in stems.split()}
# Instructions of warps that an SM of Hopper takes in a cycle: lanes of a unit by 32 (CUDA Programming Guide,
# "Throughput of native arithmetic instructions", compute capability 9.0).
RATES = {"issue": 4, "fma": 4, "alu": 2, "xu": 0.5, "fp64": 2, "lsu": 1, "l2": 64, "tensor": 2048}
SMS, QUARTERS = 132, 4


def pipe_of(one):
    """The unit that an instruction goes to."""
    return PIPE_OF.get(one.stem) or ("uniform" if one.stem.startswith(("U", "R2UR", "S2UR")) else "alu")


def products(one):
    """Multiplications with addition that one warp's instruction is on the tensor cores."""
    if m := re.search(r"HGMMA\.64x(\d+)x16", one.opcode):
        return 16 * int(m[1]) * 16
    return {"1684": 512, "1688": 1024, "16816": 2048, "16832": 4096}.get(f"{one.opcode}.".split(".")[1], 0)


def busy(one):
    """Cycles for which a warp's instruction keeps its unit of a quarter of the SM."""
    pipe = pipe_of(one)
    if pipe == "tensor":
        return max(1, products(one) * QUARTERS // RATES["tensor"])
    if one.stem in ("IMAD", "IDP"):  # 64 lanes of an SM, as the same table of the guide says
        return 1 if "MOV" in one.words else 2
    return int(QUARTERS / RATES[pipe]) if pipe in ("fma", "alu", "xu", "fp64") else 1


GH200 = "pointer chases on a GH200: github.com/markdewing/AI_kernels, latency"
CEILING = "ceilings of results/pipelines_seeds.json"
ALONE = "results/calibration.json, an H200"
# {name: (value, what it is, where it is from)}; cycles, if nothing else is said.
CONSTANTS = {
    "l1": (40, "from a load to its result, found in L1", GH200),
    "l2": (281, "the same, found in L2", GH200),
    "hbm": (690, "the same, from memory", GH200),
    "shared": (29, "the same, of shared memory", "Luo et al., arXiv 2402.13499, H800"),
    "shuffle": (23, "from a shuffle to its result", "assumed: shared memory without the banks"),
    "short": (20, "results of XU, special registers, constants and uniform moves", "assumed"),
    "reach": (4, "from issue to the data path of the LSU", "assumed"),
    "queue": (40, "work before the LSU or the copy engine beyond which no more is issued to it", "assumed"),
    "l2_bytes": (38, "bytes a cycle from L2 to each SM, all at once",
                 "tma, tiles of 512 bytes, ceilings of results/types_encoders.json: 13.5 cycles"),
    "fill": (0.1, "of the data path for each sector that arrives from L2",
             "results/counted.json: of tile's cycles at the encoder's shape its wavefronts leave 0.09 to 0.11"),
    "hbm_bytes": (14.8, "bytes a cycle of memory for each SM", f"copy, {CEILING}: 3.9 TB/s"),
    "l2_size": (50e6, "bytes of L2", "data sheets of H100 and H200"),
    "tma_least": (6.7, "of the copy engine for a request", f"{ALONE}: boxes of up to 256 bytes"),
    "tma_bytes": (64, "bytes a cycle of the copy engine, with zeros that it makes", f"{ALONE}: larger ones"),
    "tma_map": (450, "of the copy engine for a map's first request behind any fence, if all SMs use that map",
                f"{ALONE}: stages of boxes with fences, eight of 130 to 910; their mean is 450, or 490 again"),
    "tma_end": (13, "of the copy engine for the end of a phase",
                f"{ALONE}: who waits, phases of 2 and 4 boxes, a lane or a warp, the mean of 9, 12, 14, 17"),
    "tma_latency": (337, "from the copy engine's work to the barrier", f"{ALONE}: one box at a time"),
    "branch": (5.5, "from a branch that is taken to the next instruction, beside the assembler's",
               f"{ALONE}: turns of loops, 5.3 to 7.2"),
    "wake": (20, "from the end of a phase to the warp that waits for it", "assumed, as short"),
    "start": (455, "from a block's end to the next one's first instruction", f"{ALONE}: from block to block"),
    "handed": (1.14, "of all SMs for each block of a grid, which are handed out one by one",
               "results/others_fetched_h200.json: five of the corpus' grids of 12,672 blocks, in the median"),
    "launch_us": (2.8, "microseconds of an empty kernel", f"launch, {CEILING}"),
    "ghz": (1.98, "clock", "device property of H100 and H200"),
}  # fmt: skip


Constants = namedtuple("Constants", CONSTANTS, defaults=[value for value, *_ in CONSTANTS.values()])
HOPPER = Constants()
# What an H100 has less of: boxes of 256 to 1,024 bytes take 1.15 to 1.18 times as long if all SMs ask for them
# (results/calibration_h100.json), and memory's bandwidth is 2.8 TB/s (copy, results/cp_async_h100.json).
H100 = HOPPER._replace(l2_bytes=32.5, hbm_bytes=10.7)
GPUS = {"h200": HOPPER, "h100": H100}
