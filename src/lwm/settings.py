"""Trees of frozen dataclasses as settings: documented fields, dotted keys, parsing, errors.

Knows nothing of what the settings mean; ``config`` does.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

from lwm.errors import BadInput

Tree = TypeVar("Tree")


def setting(
    default: Any, doc: str, low: float | None = None, high: float | None = None, source: str = ""
) -> Any:
    """A documented field: default, meaning and unit, inclusive range, source in the paper."""
    metadata = {"doc": doc, "low": low, "high": high, "source": source}
    return dataclasses.field(default=default, metadata=metadata)


def replace(config: Tree, overrides: Mapping[str, Any]) -> Tree:
    """A new config with dotted keys replaced; strings are parsed to the field's type."""
    known = dict(fields(config))
    kind: Any = type(config)
    hints = _hints(kind)
    sections: dict[str, dict[str, Any]] = {}
    top: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in known:
            raise BadInput(f"unknown setting {key!r}{hint(key, known)}")
        value = _parse(key, value, hints[key])
        section, _, name = key.rpartition(".")
        (sections.setdefault(section, {}) if section else top)[name] = value
    for section, values in sections.items():
        top[section] = dataclasses.replace(getattr(config, section), **values)
    changed: Tree = dataclasses.replace(cast(Any, config), **top)
    return changed


def fields(config: Any) -> tuple[tuple[str, dataclasses.Field[Any]], ...]:
    """Each leaf setting as (dotted key, dataclass field), in order of declaration."""
    kind: Any = type(config)
    return _leaves(kind)


# Once a class: computed for every config, it fills CPython's lists of free tuples.
@functools.cache
def _leaves(kind: type) -> tuple[tuple[str, dataclasses.Field[Any]], ...]:
    hints, found = typing.get_type_hints(kind), []
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[f.name]):
            found += [(f"{f.name}.{g.name}", g) for g in dataclasses.fields(hints[f.name])]
        else:
            found.append((f.name, f))
    return tuple(found)


def get(config: Any, key: str) -> Any:
    """The value under a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain dict, ready for JSON."""
    return dataclasses.asdict(config)


def flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dict -> dotted keys; the inverse of ``to_dict`` on the level of names."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{k}": v for k, v in value.items()})
        else:
            flat[key] = value
    return flat


def difference(config: Any, base: Any) -> dict[str, tuple[Any, Any]]:
    """Settings that differ: dotted key -> (value in ``base``, value in ``config``)."""
    pairs = ((key, get(base, key), get(config, key)) for key, _ in fields(config))
    return {key: (old, new) for key, old, new in pairs if old != new}


def check_ranges(config: Any) -> None:
    """BadInput for the first value outside its field's range."""
    for key, f in fields(config):
        _check_range(key, get(config, key), f)


def _check_range(key: str, value: Any, f: dataclasses.Field[Any]) -> None:
    low, high = f.metadata.get("low"), f.metadata.get("high")
    inside = (low is None or value >= low) and (high is None or value <= high)
    if not inside:  # NaN is not inside anything
        bounds = f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]"
        raise BadInput(f"{key}={value} is outside {bounds}")


def _parse(key: str, value: Any, kind: Any) -> Any:
    """``value`` (a string from the command line or a JSON value) as a ``kind``."""
    try:
        if typing.get_origin(kind) is Literal:
            choices = typing.get_args(kind)
            if value not in choices:
                raise BadInput(f"{key}={value!r} is not one of {', '.join(map(repr, choices))}")
            return value
        if kind is bool:
            known = {"true": True, "false": False, "1": True, "0": False}
            return value if isinstance(value, bool) else known[str(value).lower()]
        if isinstance(value, bool):
            raise ValueError
        if kind is int:
            number = float(value.replace("_", "")) if isinstance(value, str) else value
            if number != int(number):
                raise ValueError
            return int(number)
        if kind is float:
            number = float(value)
            if not math.isfinite(number):
                raise ValueError
            return number
        if not isinstance(value, str):
            raise ValueError
        return value
    except (ValueError, KeyError, TypeError, OverflowError):
        name = getattr(kind, "__name__", str(kind))
        raise BadInput(f"{key}={value!r} is not a valid {name}") from None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Each leaf setting's type, by dotted key."""
    found = dict(typing.get_type_hints(kind))
    for name in [n for n, sort in found.items() if dataclasses.is_dataclass(sort)]:
        section = typing.get_type_hints(found.pop(name))
        found.update({f"{name}.{key}": sort for key, sort in section.items()})
    return found


def hint(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` or the list of choices when nothing is near."""
    near = difflib.get_close_matches(word, list(known), 1, 0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    names = list(known)
    return f"; choose from {', '.join(names)}" if len(names) < 12 else ""
