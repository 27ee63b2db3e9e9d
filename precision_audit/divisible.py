"""Whether a size that may hold symbols is a multiple of a number.

Takes a dimension as `records.Tensor` holds it, an integer or an expression such as `16*s0` or `B*T`; tells whether it
is a multiple always, never, or depending on the symbols, and then on which condition. Hardware asks this of every
GEMM's K, N and M before a step is run, when the batch may not be known.

The answer is exact for integers and sound for expressions: a symbol is any integer, a sub-expression that is not a
sum or product of integers and symbols (`s0//2`) counts as one more unknown integer. `always` and `never` are
therefore never wrong; `depends` may be more cautious than need be. Expressions are read with `ast`, never evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True, slots=True)
class Divisible:
    """`condition` is filled where `verdict` is `depends`: `B % 4 == 0`."""

    verdict: Literal["always", "never", "depends"]
    condition: str = ""


def divisible(size: int | str, by: int) -> Divisible:
    """Is `size` a multiple of `by`?"""
    if isinstance(size, int):
        return Divisible("never" if size % by else "always")
    constant, terms = _terms(_expression(size))
    common = math.gcd(by, *(coefficient for _, coefficient in terms))
    if constant % common:
        return Divisible("never")
    if common == by:
        return Divisible("always")
    if constant or len(terms) > 1:
        return Divisible("depends", f"{_bracketed(str(_expression(size)))} % {by} == 0")
    return Divisible("depends", f"{_bracketed(str(terms[0][0]))} % {by // common} == 0")


def product(sizes: Sequence[int | str]) -> int | str:
    """The product of dimensions, an integer where all are; 1 of none."""
    result: Any = 1
    for size in sizes:
        result = result * (size if isinstance(size, int) else _expression(size))
    return result if isinstance(result, int) else _plain(result)


def symbols(size: int | str) -> tuple[str, ...]:
    """Names of the unknowns of a size, sorted."""
    if isinstance(size, int):
        return ()
    tree = ast.parse(size, mode="eval")
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}
    return tuple(sorted(names))


def _plain(expression: sympy.Expr) -> int | str:
    return int(expression) if expression.is_Integer else str(expression)


def _terms(expression: sympy.Expr) -> tuple[int, list[tuple[sympy.Expr, int]]]:
    """The constant, and every other term of the expanded sum with its integer coefficient."""
    constant, terms = 0, []
    for monomial, coefficient in expression.expand().as_coefficients_dict().items():
        if monomial == 1:
            constant = int(coefficient)
        else:
            terms.append((monomial, int(coefficient)))
    return constant, terms


def _expression(size: str) -> sympy.Expr:
    try:
        return _read(ast.parse(size, mode="eval").body)
    except SyntaxError:
        return _unknown(f"({size})")


def _read(node: ast.expr) -> sympy.Expr:
    """Sums, differences, products and powers of integers and names; anything else is one unknown."""
    import sympy

    match node:
        case ast.Constant(value=int(value)):
            return sympy.Integer(value)
        case ast.Name(id=name):
            return _unknown(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _read(left) + _read(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _read(left) - _read(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _read(left) * _read(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if power >= 0:
            return _read(left) ** power
    return _unknown(ast.unparse(node) if isinstance(node, ast.Call) else f"({ast.unparse(node)})")


def _unknown(name: str) -> sympy.Symbol:
    import sympy

    return sympy.Symbol(name, integer=True)


def _bracketed(text: str) -> str:
    return f"({text})" if " + " in text or " - " in text else text
