"""What each stage has to do, by formula: floating-point operations and bytes.

**Operations.**  A multiplication and an addition count as two, in matrix products and convolutions
only.  A layer of w weights takes 2 w a row (a convolution's weights count once for each place they
are applied at), its backward pass twice as many: for the weights and for the input.  The first
layer's input needs no gradient, so its backward pass takes 2 w.  Layers, with D embedding, A
actions, F, H, K the widths of FC, GRU and head:

    FC      D + A + 1 -> F       DQN on the labyrinth; D + A -> F for the world model
    GRU     F -> H, w = 3H (F + H)                             F H for the feed-forward stand-in
    head    H -> 2K -> A + 1     DQN, both streams; H -> K -> D for the world model
    CNN     84² -> 32·20² -> 64·9² -> 64·7² -> F or D          Atari; the DQN's GRU also sees A + 1

**Bytes.**  Every array is read once and written once, and what could stay in a cache is free.  Over
N rows a layer reads its input and writes its output, N (in + out); its backward pass reads the
input and the output's gradient and writes the input's, N (2 in + out), the first layer's without
the last.  Weights are read once a pass, their gradients written once.  The GRU counts as a layer
F + H -> H.  Numbers take 4 bytes, activations of convolutions in bfloat16 2, pixels 1.  Clipping
and Adam read or write the size of the weights 10 times (gradient read, scaled; four read, three
written), a moving average 3 times.

**Stages.**  With windows of B × T rows, of which U = T - burn-in follow the burn-in:

    act          K rows of everything, and their rows in replay
    sample       the windows' rows and states (and frames, pairs of frames: unpacked, written once)
    encoder      both passes over the frames of the pairs, and Adam
    world_model  Phi of B T frames; both passes over B (T - 1) rows, and Adam
    target       B T rows of FC (CNN) and GRU, B U of head
    online       the same; both of their burn-ins without gradient
    backward     B U rows of everything
    optimiser    clipping, Adam and the moving averages of the DQN
    priorities   B U errors in, B leaves and their paths in the sum tree
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lwm.config import Config
from lwm.vision import FEATURES, SIDE, working_dtype

_PIXELS = SIDE * SIDE
_FIELDS = 8 + 4 + 1 + 1 + 4 + 4
"""Bytes of a row in replay beside its observation: action, reward, flags, discount, bonus."""
_UPDATE, _AVERAGE = 10, 3
_PARTS = ("world_model", "target", "online", "backward")


class Cost(NamedTuple):
    """Floating-point operations and bytes of one call of a stage."""

    flop: float
    bytes: float


class Layer(NamedTuple):
    """A layer, per row: bytes read and written, weights, how often these are applied."""

    inputs: float
    outputs: float
    weights: float
    places: int = 1

    @property
    def flop(self) -> float:
        """Operations of a forward pass, a row."""
        return 2 * self.weights * self.places


def forward(layers: list[Layer], rows: int) -> Cost:
    """One pass over ``rows`` rows."""
    flop = sum(rows * a.flop for a in layers)
    return Cost(flop, sum(rows * (a.inputs + a.outputs) + 4 * a.weights for a in layers))


def backward(layers: list[Layer], rows: int, input_gradient: bool = False) -> Cost:
    """The pass back over ``rows`` rows; the first layer's input is data, unless said otherwise."""
    flop = moved = 0.0
    for i, a in enumerate(layers):
        both = input_gradient or i > 0
        flop += rows * a.flop * (1 + both)
        moved += rows * (a.inputs * (1 + both) + a.outputs) + 4 * a.weights * (1 + both)
    return Cost(flop, moved)


def add(*costs: Cost) -> Cost:
    """The sum."""
    return Cost(sum(c.flop for c in costs), sum(c.bytes for c in costs))


def weights(layers: list[Layer]) -> float:
    """Weights of the layers; biases are few."""
    return sum(a.weights for a in layers)


def dense(inputs: int, outputs: int) -> Layer:
    """A fully connected layer."""
    return Layer(4 * inputs, 4 * outputs, inputs * outputs)


def gru(inputs: int, hidden: int) -> Layer:
    """A GRU as a layer: input and state in, state out."""
    return Layer(4 * (inputs + hidden), 4 * hidden, 3 * hidden * (inputs + hidden))


def trunk(size: int) -> list[Layer]:
    """The convolutions of a frame, with activations of ``size`` bytes."""
    return [
        Layer(_PIXELS, size * 32 * 20**2, 32 * 8**2, 20**2),
        Layer(size * 32 * 20**2, size * 64 * 9**2, 64 * 32 * 4**2, 9**2),
        Layer(size * 64 * 9**2, size * FEATURES, 64 * 64 * 3**2, 7**2),
    ]


def costs(config: Config, actions: int, bits: int = 4) -> dict[str, Cost]:
    """Of one call of every stage, ``learner`` and ``cycle`` last.  ``bits``: of an observation
    that is no image."""
    c, images = config, config.sees_images
    size = 2 if images and working_dtype(c.precision).itemsize == 2 else 4
    see, core, head = _dqn(c, actions, bits, size)
    model = _world_model(c, actions, c.encoder.embedding if images else bits)
    phi = [*trunk(size), dense(FEATURES, c.encoder.embedding)] if images and model else []
    trains_phi = bool(phi) and c.updates_encoder
    B, T, U, K = c.replay.batch, c.window, c.window - c.replay.burn_in, c.loop.actors
    dqn = [*see, core, *head]
    row = _FIELDS + (_PIXELS if images else bits)
    states = 4 * c.dqn.hidden * (1 / c.replay.unroll if c.replay.prioritised else 1)
    pairs = 2 * c.encoder.batch
    windows = B * T * row + B * 4 * c.dqn.hidden
    # Compressed frames: reading them is little against writing the pixels.
    sampled = windows + pairs * _PIXELS if trains_phi else windows
    tree = 3 * 8 * math.log2(max(c.replay.capacity_steps / c.replay.unroll, 1))
    passes = add(forward([*see, core], B * T), forward(head, B * U))
    found = {
        "act": add(
            forward(phi, K), forward(model, K), forward(dqn, K), Cost(0, K * (row + states))
        ),
        "env": Cost(0, K * row),
        "sample": Cost(0, (1 if images else 2) * sampled),
        "target": passes,
        "online": passes,
        "backward": backward(dqn, B * U),
        "optimiser": Cost(
            0, 4 * (_UPDATE + _AVERAGE * (1 + (c.dqn.average > 0))) * weights([*dqn])
        ),
        "priorities": Cost(0, B * (4 * U + (tree if c.replay.prioritised else 0))),
    }
    if model:
        both = add(forward(model, B * (T - 1)), backward(model, B * (T - 1)))
        adam = Cost(0, 4 * _UPDATE * weights(model))
        found["world_model"] = add(forward(phi, B * T), both, adam)
    if trains_phi:
        adam = Cost(0, 4 * _UPDATE * weights(phi))
        found["encoder"] = add(forward(phi, pairs), backward(phi, pairs), adam)
    nothing = Cost(0, 0)
    parts = (*_PARTS, "optimiser", "priorities")
    found["learner"] = add(*(found.get(part, nothing) for part in parts))
    calls = calls_per_cycle(config)
    scaled = [
        Cost(cost.flop * calls[stage], cost.bytes * calls[stage])
        for stage, cost in found.items()
        if stage != "learner"
    ]
    found["cycle"] = add(*scaled)
    return found


def calls_per_cycle(config: Config) -> dict[str, float]:
    """How often a stage runs in a cycle: actors always, the learner once in some."""
    update = 1 / config.loop.cycles_per_update
    learning = ("sample", "encoder", *_PARTS, "optimiser", "priorities", "learner")
    return {"act": 1.0, "env": 1.0, **dict.fromkeys(learning, update), "cycle": 1.0}


def _dqn(
    config: Config, actions: int, bits: int, size: int
) -> tuple[list[Layer], Layer, list[Layer]]:
    """The DQN up to its features, its GRU, its head."""
    q = config.dqn
    if config.sees_images:
        flat = Layer(size * FEATURES, 4 * q.features, FEATURES * q.features)
        see, inputs = [*trunk(size), flat], q.features + actions + 1
    else:
        see, inputs = [dense(bits + actions + 1, q.features)], q.features
    second = Layer(4 * 2 * q.head, 4 * (actions + 1), q.head * (actions + 1))
    return see, gru(inputs, q.hidden), [dense(q.hidden, 2 * q.head), second]


def _world_model(config: Config, actions: int, embedding: int) -> list[Layer]:
    """The world model; nothing where the agent has none."""
    m = config.world_model
    if not config.bonus.startswith("lwm"):
        return []
    recurrent = config.bonus == "lwm"
    core = gru(m.features, m.hidden) if recurrent else dense(m.features, m.hidden)
    first = dense(embedding + actions, m.features)
    return [first, core, dense(m.hidden, m.head), dense(m.head, embedding)]
