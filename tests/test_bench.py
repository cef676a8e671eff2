"""The benchmark's structure and its count of operations; speed itself is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lwm import config, kernels
from lwm.bench import atari, common
from lwm.bench import labyrinth as bench
from lwm.training import Trainer


def tiny(**changes: Any) -> config.Config:
    """Widths and lengths small enough to count by hand: windows of 1 + 2 + 1 rows, 7 of them."""
    sizes = {
        "replay.batch": 7,
        "replay.burn_in": 1,
        "replay.unroll": 2,
        "dqn.features": 2,
        "dqn.hidden": 3,
        "dqn.head": 5,
        "world_model.features": 2,
        "world_model.hidden": 3,
        "world_model.head": 5,
    }
    return config.load_preset("paper", sizes | changes)


def test_operations_by_hand() -> None:
    # DQN, a row: FC 2·9·2 = 36; GRU 2·(3·3)·(2 + 3) = 90; head 2·(10·3 + 5·4 + 5) = 110.
    # World model, a row: FC 2·8·2 = 32; GRU 90; head 2·(5·3 + 5·4) = 70.
    # A window has 4 rows, 3 after the burn-in; the world model predicts 3 of them.
    found = bench.flops(tiny())
    assert found["target"] == found["online"] == 7 * 4 * (36 + 90) + 7 * 3 * 110 == 5838
    assert found["backward"] == 7 * 3 * (36 + 2 * 90 + 2 * 110) == 9156
    assert found["world_model"] == 7 * 3 * (2 * 32 + 3 * 90 + 3 * 70) == 11424
    assert found["learner"] == 5838 + 5838 + 9156 + 11424
    assert found["act"] == 8 * (36 + 90 + 110 + 32 + 90 + 70)
    assert found["cycle"] == found["act"] + found["learner"] / 4


def test_operations_of_other_agents() -> None:
    assert "world_model" not in bench.flops(tiny(agent="dqn"))
    assert bench.flops(tiny(agent="dqn"))["learner"] == 5838 + 5838 + 9156
    # The feed-forward stand-in for the GRU: 2·2·3 = 12 a row.
    feed_forward = bench.flops(tiny(agent="lwm-ff"))
    assert feed_forward["world_model"] == 7 * 3 * (2 * 32 + 3 * 12 + 3 * 70)


def test_operations_as_torch_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix product of the real stages, counted as they run."""
    monkeypatch.setattr(kernels, "library", lambda: None)  # torch sees none of the compiled ones

    def in_place(total: list[int], a: list[int], b: list[int], **_: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    debug = config.load_preset("debug", {"env.time_limit": 12})
    trainer = Trainer(debug)
    events = trainer.run()
    while trainer.learner.updates < 1:
        next(events)
    work, wanted = bench._stages(trainer), bench.flops(debug)
    for stage in ("act", "target", "online", "_forward", "backward", "world_model", "learner"):
        counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})
        with counter:
            work[stage][1]()
        if stage in wanted:
            assert counter.get_total_flops() == wanted[stage], stage


def test_rows_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def debug(name: str, overrides: dict[str, Any]) -> config.Config:
        assert name == "paper"
        return config.load_preset("debug", overrides)

    monkeypatch.setattr(bench, "load_preset", debug)
    monkeypatch.setattr(bench, "_LANES", 8)
    out = tmp_path / "results" / "bench.json"
    text = bench.run(0.0, out)
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [row["stage"] for row in rows] == list(bench.STAGES)
    for row in rows:
        assert tuple(row) == common.COLUMNS
        assert (row["workload"], row["cores"], row["dtype"]) == ("labyrinth", 1, "float32")
        assert row["ms"] > 0
        assert (row["gflop"] is None) == (row["of_matmul"] is None)
        assert row["stage"] in text
    counted = {row["stage"] for row in rows if row["gflop"] is not None}
    assert counted == set(bench.STAGES) - {"env", "sample", "optimiser"}
    for word in ("SyncVectorEnv", "aim", "frames/s", "minutes", "matmul", str(out)):
        assert word in text


def test_ratio_to_the_matrix_product_by_hand() -> None:
    # A product of 2·32·128·384 operations in 1 ms; a stage with twice the work in 4 ms is half as
    # fast, one without a count has no ratio.
    low = dict.fromkeys(bench.STAGES, 4e-3) | {"_matmul": 1e-3}
    rows = common.stage_rows(
        "labyrinth",
        bench.STAGES,
        low,
        {"act": 4 * 32 * 128 * 384},
        2 * 32 * 128 * 384 / 1e-3,
        "float32",
        "abc",
    )
    by_stage = {row["stage"]: row for row in rows}
    assert by_stage["act"]["ms"] == pytest.approx(4.0)
    assert by_stage["act"]["gflop"] == pytest.approx(4 * 32 * 128 * 384 / 1e9)
    assert by_stage["act"]["of_matmul"] == pytest.approx(0.5)
    assert by_stage["env"]["of_matmul"] is None
    assert by_stage["env"]["commit"] == "abc"


def test_every_entry_has_its_turn_in_every_round() -> None:
    tape: list[str] = []
    work: common.Work = {"a": (2, lambda: tape.append("a")), "b": (1, lambda: tape.append("b"))}
    low = common.measure(work, 0.0)
    assert "".join(tape) == "aab" * 3
    assert set(low) == {"a", "b"}


def test_rows_of_the_other_workload_stay(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    row = dict(
        zip(common.COLUMNS, ("atari", "act", 1, "float32", 1.0, None, None, "a"), strict=True)
    )
    common.write(out, [row])
    common.write(out, [{**row, "workload": "labyrinth"}])
    common.write(out, [{**row, "ms": 2.0}])
    found = {r["workload"]: r["ms"] for r in json.loads(out.read_text())}
    assert found == {"labyrinth": 1.0, "atari": 2.0}
    out.write_text("damaged")
    common.write(out, [row])
    assert len(json.loads(out.read_text())) == 1


def test_atari_operations_by_hand() -> None:
    """The paper's sizes, with 18 actions: about 171 GFLOP a cycle, as the released code takes."""
    paper = config.load_preset("paper", workload="atari")
    found = atari.flops(paper, 18)
    conv = 1_638_400 + 5_308_416 + 3_612_672
    see, phi = conv + 2 * 3136 * 512, conv + 2 * 3136 * 32
    gru, head = 6 * 512 * (512 + 19 + 512), 2 * (2 * 512 * 512 + 512 * 19)
    assert found["target"] == 16 * 125 * (see + gru) + 16 * 85 * head
    assert found["backward"] == 16 * 85 * (2 * (see + gru + head) - 1_638_400)
    assert found["encoder"] == 512 * (3 * phi - 1_638_400)
    assert 140e9 < found["cycle"] < 200e9
