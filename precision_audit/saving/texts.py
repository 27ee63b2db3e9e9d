"""The texts beside saved weights: a loader that can be read in a minute, and a README.

Takes the manifest's facts; gives Python and Markdown. Holds no logic of its own: the loader calls `saving.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LOADER = '''"""Load the converted model that this folder holds.

    from load import load
    module = load()                # builds the model from its source, see MODEL
    module = load(build_model())   # or give the model, freshly built

Needs precision-audit, and the model's source, which is executed. The weights come from model.safetensors, the plan
from plan.yaml; digests of both are checked against manifest.json. Nothing is unpickled.
"""

from pathlib import Path

from precision_audit import saving

MODEL = {model!r}  # the model's source, relative to this folder: change it when one of them is moved


def load(model=None):
    """The converted module, with its weights, in the mode in which it was saved."""
    return saving.load(Path(__file__).parent, model, source=MODEL)


if __name__ == "__main__":
    print(load())
'''

_SWAPPED = """Its graph holds modules that cannot be exported, so the model's source and precision-audit are needed:

    from precision_audit import saving
    module = saving.load("this/folder"{argument})

`load.py` does the same. `model.safetensors` holds the weights under the names of the original's state dict;
`plan.yaml` holds every cast and swap. Digests of both are in `manifest.json` and are checked when loading.
"""

_EXPORTED = """It needs torch alone:

    module = torch.export.load("model.pt2").module()

The file holds the evaluation graph. `plan.yaml` says which cast was placed where.
"""


def loader_text(facts: Mapping[str, Any]) -> str:
    """The text of load.py."""
    return _LOADER.format(model=facts["model"])


def readme_text(facts: Mapping[str, Any]) -> str:
    """The text of README.md."""
    formats = facts["formats"]
    swaps = [f"- `{each['module']}`: {each['backend']} {each['recipe']}" for each in facts["swaps"]]
    lines = [
        "# A model converted by precision-audit",
        "",
        f"Policy {facts['policy']}, {facts['mode']}: {formats['high']} and {formats['low']}, "
        f"{facts['casts']} casts, {len(swaps)} swapped linears.",
        "",
        *swaps,
        *([""] if swaps else []),
        _SWAPPED.format(argument="" if facts["model"] else ", build_model()")
        if facts["kind"] == "swapped"
        else _EXPORTED,
    ]
    return "\n".join(lines)
