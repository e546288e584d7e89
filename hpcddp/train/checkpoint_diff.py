"""Two training states compared bit by bit. Knows torch; knows no file and no run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

ABSENT = "(absent)"

Leaves = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SectionDiff:
    """What differs below one top-level key of the states (model, optimizer, step, ...)."""

    name: str
    num_tensors: int  # in either state
    differing: tuple[str, ...]  # dotted names of tensors, in the state's own order
    max_abs_difference: float  # over tensors of equal shape; inf where a NaN met a number
    values: Mapping[str, tuple[Any, Any]]  # differing plain values: dotted name -> both

    @property
    def identical(self) -> bool:
        return not self.differing and not self.values


def diff_states(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[SectionDiff]:
    """One entry per top-level key of either state, in the first one's order.

    Bits decide, with type and shape: 0.0 and -0.0 differ, equal NaN bits do not.
    """
    return [
        _diff_section(name, _leaves_below(first, name), _leaves_below(second, name))
        for name in _all_keys(first, second)
    ]


def _diff_section(name: str, first: Leaves, second: Leaves) -> SectionDiff:
    pairs = {
        key: (first.get(key, ABSENT), second.get(key, ABSENT)) for key in _all_keys(first, second)
    }
    tensors = {key: pair for key, pair in pairs.items() if _any_tensor(pair)}
    differing = {key: pair for key, pair in tensors.items() if not _same_bits(*pair)}
    return SectionDiff(
        name,
        len(tensors),
        tuple(differing),
        max((_max_abs_difference(*pair) for pair in differing.values()), default=0.0),
        {
            key: pair
            for key, pair in pairs.items()
            if key not in tensors and repr(pair[0]) != repr(pair[1])  # nan equals nan this way
        },
    )


def _leaves_below(state: Mapping[str, Any], name: str) -> Leaves:
    return dict(_leaves(state[name], str(name))) if name in state else {}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield name, value
        return
    for key, item in items:
        yield from _leaves(item, f"{name}.{key}")


def _all_keys(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> list[Any]:
    return [*first, *(key for key in second if key not in first)]


def _any_tensor(pair: tuple[Any, Any]) -> bool:
    return any(isinstance(value, torch.Tensor) for value in pair)


def _same_bits(first: Any, second: Any) -> bool:  # noqa: ANN401
    if not _comparable(first, second) or first.dtype != second.dtype:
        return False
    return torch.equal(_bytes_of(first), _bytes_of(second))


def _comparable(first: Any, second: Any) -> bool:  # noqa: ANN401
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    return both and first.shape == second.shape


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def _max_abs_difference(first: Any, second: Any) -> float:  # noqa: ANN401
    if not _comparable(first, second) or not first.numel():
        return 0.0
    wide = torch.complex128 if first.is_complex() or second.is_complex() else torch.float64
    first, second = first.to(wide), second.to(wide)
    # Equal infinities and NaN beside NaN are no difference; NaN beside a number is an infinite one.
    same = (first == second) | (first.isnan() & second.isnan())
    differences = torch.where(same, torch.zeros_like(first), first - second).abs()
    return float(differences.nan_to_num(nan=torch.inf, posinf=torch.inf).max())
