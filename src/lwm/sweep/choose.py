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
    ids = {(s, seed): s.job(seed).id.split("/") for s, seed in whole.plan}
    plan = []
    for word in wanted:
        # The first part of a run's id says where it is kept, which may be another experiment's.
        tail = word.split("/")[1:]
        found = [key for key in whole.plan if ids[key][1 : 1 + len(tail)] == tail]
        if not found:
            raise BadInput(f"no run of {name} is called {word}")
        plan += [key for key in found if key not in plan]
    return replace(whole, plan=plan)
