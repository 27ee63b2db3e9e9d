"""Names of torch and of its neighbours that a training loop is made of.

Takes a dotted name; says what it makes. Tables of names only: nothing is imported.
"""

from __future__ import annotations

import re

SCALERS = frozenset({"torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler",
                     "torch.amp.grad_scaler.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler"})  # fmt: skip
AUTOCASTS = frozenset({"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast",
                       "torch.amp.autocast_mode.autocast", "torch.cuda.amp.autocast_mode.autocast"})  # fmt: skip
# Return what they are given, wrapped.
WRAPPERS = re.compile(
    r"^torch\.(compile|jit\.(script|trace)|nn\.(parallel\.)?(DataParallel|DistributedDataParallel)"
    r"|nn\.SyncBatchNorm\.convert_sync_batchnorm|distributed\.fsdp\.\w*)$"
)
OPTIMIZER = re.compile(
    r"^(torch\.optim\.(\w+\.)?(?!lr_scheduler)[A-Z]\w*|.*\.(Adam\w*|PagedAdam\w*|SGD\w*|RMSprop\w*|Adagrad\w*|Lion\w*"
    r"|Muon|LAMB|Lamb|Adafactor|NAdam|RAdam|Rprop|ASGD|LBFGS))$"
)
SCHEDULER = re.compile(r"lr_scheduler|\.get_\w*schedule\w*$|Scheduler$|LR$")
MODEL = re.compile(
    r"^(torch\.nn\.(modules\.\w+\.)?(?!\w*Loss$|Parameter|Buffer|Module$)[A-Z]\w*|torchvision\.models\.(\w+\.)*\w+"
    r"|timm\.create_model|.*\.\w*(Model|For)\w*\.from_(pretrained|config))$"
)
MODULE_BASE = re.compile(r"(^|\.)(Module|\w*Module|PreTrainedModel|\w*Net|\w*Model)$")
CRITERION = re.compile(r"^torch\.nn\.(modules\.loss\.)?\w*Loss$")
FUNCTIONAL_LOSS = re.compile(
    r"^torch\.nn\.functional\.(\w*_loss|cross_entropy|binary_cross_entropy\w*|kl_div|l1_loss|nll_loss)$"
)
CLIPS = frozenset({"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm",
                   "torch.nn.utils.clip_grad.clip_grad_norm_",
                   "torch.nn.utils.clip_grad.clip_grad_value_", "torch.nn.utils.clip_grads_with_norm_"})  # fmt: skip
FORMATS = {"torch.float16": "fp16", "torch.half": "fp16", "torch.bfloat16": "bf16", "torch.float32": "fp32",
           "torch.float": "fp32", "torch.float64": "fp64", "torch.double": "fp64"}  # fmt: skip
# Contexts that are surely no autocast.
PLAIN_CONTEXTS = re.compile(
    r"(no_grad|inference_mode|enable_grad|set_grad_enabled|nullcontext|suppress|no_sync|profile|record_function|device"
    r"|stream|open|tqdm|detect_anomaly|set_detect_anomaly|graph|join|Pool|ExitStack|redirect_\w+|sdp_kernel"
    r"|sdpa_kernel|errstate|timer|lock|catch_warnings|SummaryWriter)$",
    re.IGNORECASE,
)
# Tensor methods that give a new tensor and leave theirs as it is.
OUT_OF_PLACE = frozenset({"half", "float", "bfloat16", "double", "to", "type", "mul", "add", "sub", "div", "clamp",
                          "clip", "clamp_min", "clamp_max", "masked_fill", "lerp", "addcmul", "addcdiv", "nan_to_num",
                          "neg", "abs", "sqrt", "round", "detach", "pow", "floor", "sign", "renorm"})  # fmt: skip
CHANGES = frozenset(f"{name}_" for name in (
    "mul", "add", "sub", "div", "clamp", "clip", "clamp_min", "clamp_max", "masked_fill", "lerp", "addcmul", "addcdiv",
    "nan_to_num", "neg", "abs", "sqrt", "round", "pow", "floor", "sign", "renorm", "exp", "zero", "fill", "copy",
    "normal", "uniform", "index_add", "index_fill", "index_copy", "scatter", "scatter_add",
))  # fmt: skip
CASTS = {"half": "fp16", "bfloat16": "bf16", "float": "fp32", "double": "fp64"}
FACTORIES = frozenset({f"torch.{name}" for name in (
    "randn", "rand", "zeros", "ones", "empty", "full", "tensor", "arange", "linspace", "randint", "zeros_like",
    "ones_like", "randn_like", "rand_like", "empty_like", "full_like", "eye", "cat", "stack", "matmul", "sum", "mean",
    "exp", "log", "where", "sigmoid", "softmax", "tanh", "relu", "abs", "sqrt", "clamp", "norm", "bmm", "mm", "einsum",
    "from_numpy",
)})  # fmt: skip
# Linear in the gradient, or no matter of its size: harmless on scaled gradients.
GRADIENT_SIZES = frozenset({"norm", "clamp", "clamp_", "clip", "clip_", "std", "var", "pow", "square"})
NORMS = frozenset({"torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm", "torch.clamp", "torch.clamp_",
                   "torch._foreach_norm", "torch.nn.utils.get_total_norm"})  # fmt: skip
