"""The linears that a policy would swap, and what quantisation does to each: shared by the rules about it (PA410 …).

Takes a context; gives one `Swapping` per linear that a backend has taken, those among them that a rule of the family
has had left out: a finding must stay when its remedy is heeded. Nothing is known of a linear that was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from precision_audit.recipes import RECIPES, Recipe
from precision_audit.records import Op, Quantised, Scaled
from precision_audit.rules import Context

DEFAULT = "rowwise"  # the recipe of a policy that names none, as `decide` has it


@dataclass(frozen=True, slots=True)
class Swapping:
    op: Op
    recipe: Recipe
    schemes: Mapping[str, Quantised]

    @property
    def made(self) -> Quantised:
        """What the recipe's own scheme does."""
        return self.schemes[self.recipe.scheme]

    @property
    def name(self) -> str:
        return self.op.module or "linear"

    def operand(self, name: str, scheme: str = "") -> Scaled | None:
        """One operand under the recipe's scheme, or under another."""
        found = self.schemes[scheme or self.recipe.scheme].operands
        return next((each for each in found if each.operand == name), None)


def swapping(context: Context) -> Iterator[Swapping]:
    """In graph order."""
    recipes = {swap.op: (swap.backend, swap.recipe) for swap in context.swaps}
    for refusal in context.refusals:
        if refusal.reason.startswith("rule "):
            recipes[refusal.op] = (refusal.backend, context.matches[refusal.op].rule.recipe or DEFAULT)
    for op in context.computed():
        row = RECIPES.get(recipes.get(op.key, ("", "")))
        schemes = context.quantised.get(op.key, {})
        if row is not None and row.scheme in schemes:
            yield Swapping(op, row, schemes)


def percent(share: float) -> str:
    """`24 %`, `0.3 %`."""
    return f"{100 * share:.2g} %"
