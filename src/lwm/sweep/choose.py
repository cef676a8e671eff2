"""Which runs a sweep is of: experiments, rows of them, or a cross product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lwm import experiments
from lwm.errors import BadInput
from lwm.experiments.campaign import Campaign
from lwm.experiments.options import Options


def chosen(ids: Sequence[str], options: Options) -> list[Campaign]:
    """Campaigns of ids such as ``table1``, ``table1/4x4-lwm-paper`` and ``.../seed0``.

    An id that no run has is an error, told before anything runs.
    """
    parts: dict[str, list[str]] = {}
    for name in ids:
        parts.setdefault(name.partition("/")[0], []).append(name.rstrip("/"))
    return [_part(name, wanted, options) for name, wanted in parts.items()]


def _part(name: str, wanted: list[str], options: Options) -> Campaign:
    module = experiments.find(name)
    if not hasattr(module, "campaign_of"):
        raise BadInput(f"{name} has no training runs to sweep over: lwm reproduce {name}")
    whole: Campaign = module.campaign_of(options)
    if name in wanted:
        return whole
    # A scale changes the ids of runs; they may be called by those of the whole budget too.
    full = module.campaign_of(Options(seeds=options.seeds)).plan
    names = [
        {_tail(setting.job(seed).id) for setting, seed in both}
        for both in zip(whole.plan, full, strict=True)
    ]
    chosen: list[int] = []
    for word in wanted:
        tail = _tail(word)
        found = [i for i, known in enumerate(names) if any(k[: len(tail)] == tail for k in known)]
        if not found:
            raise BadInput(f"no run of {name} is called {word}")
        chosen += [i for i in found if i not in chosen]
    return replace(whole, plan=[whole.plan[i] for i in chosen])


def _tail(name: str) -> tuple[str, ...]:
    """The id without its first part, where a run is kept: that may be another experiment's."""
    return tuple(name.split("/")[1:])
