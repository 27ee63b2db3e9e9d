"""Ops by what they make of a small error of their operands: names for the rules about accuracy. Knows no context."""

from __future__ import annotations

from precision_audit.records import Op

ANGLES = frozenset({"sin", "cos", "tan", "sinc", "special_sinc", "polar"})
SAMPLERS = frozenset({"grid_sampler", "grid_sampler_2d", "grid_sampler_3d"})
STEPS = frozenset({"floor", "ceil", "round", "special_round", "trunc", "fix", "frac", "fmod", "remainder"}) | {
    "floor_divide"
}
JUMPS = frozenset({"sign", "sgn", "heaviside", "hardshrink", "threshold"})  # one step, at zero or where they are told
DIFFERENCES = frozenset({"sub", "subtract", "rsub", "add", "diff", "lerp", "addcmul", "addcdiv"})
# Ops that subtract inside: a mean, one product from another.
CENTRED = frozenset({"var", "std", "var_mean", "std_mean", "cov", "corrcoef", "mean", "sum", "trace", "nanmean"}) | {
    *("layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "batch_norm", "instance_norm", "gradient"),
    *("_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cross", "linalg_cross", "cdist", "dist"),
    *("pairwise_distance", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "dot", "vdot", "det"),
    *("linalg_det", "linalg_vecdot", "cosine_similarity", "_euclidean_dist", "_cdist_forward"),
}
EXPONENTIALS = frozenset(
    {"exp", "exp2", "expm1", "softmax", "_softmax", "special_exp2", "special_expm1", "sinh", "cosh"}
)
LOGARITHMS = frozenset(
    {"log", "log2", "log10", "log1p", "special_log1p", "logit", "special_logit", "xlogy", "nll_loss"}
)
DIVISIONS = frozenset({"div", "divide", "true_divide", "reciprocal"})
ROOTS = frozenset({"sqrt", "rsqrt", "pow", "acos", "arccos", "asin", "arcsin", "atanh", "acosh", "float_power"})
POLES = frozenset({"logit", "special_logit", "log1p", "special_log1p", "atanh", "arctanh", "erfinv"})  # of ones
SQUASHERS = frozenset({"sigmoid", "special_expit", "tanh", "hardsigmoid", "softmax", "_softmax", "erf", "special_ndtr"})
LOOKUPS = frozenset(
    {"embedding", "index", "gather", "index_select", "take", "take_along_dim", "embedding_bag", "one_hot"}
)
RANKS = frozenset({"argmax", "argmin", "topk", "sort", "argsort", "max", "min"})
CASTS = frozenset({"to", "_to_copy", "type_as"})


def base(op: Op) -> str:
    """The op's name without the underscore of its in-place form."""
    return op.op.removesuffix("_") if not op.op.startswith("_") else op.op
