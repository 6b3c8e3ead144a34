"""Writes esgd.json: two clients and a center, by plain Python floats and the papers' formulas.

``python tests/property/golden/make_esgd.py`` rewrites the file; the test compares the real rules with it. A
client "learns" by adding a fixed local step, so that no gradient is needed.
"""

from __future__ import annotations

import json
from pathlib import Path

PATH = Path(__file__).with_name("esgd.json")

CENTER = [1.0, -2.0]
STEPS = [[0.25, -0.5], [-0.125, 1.0]]
ORDER = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1]
ALPHA, LR, MOMENTUM, LAMDA = 0.3, 0.7, 0.9, 0.5


def elastic():
    center, clients = list(CENTER), [list(CENTER), list(CENTER)]
    for i in ORDER:
        clients[i] = [w + s for w, s in zip(clients[i], STEPS[i])]
        difference = [ALPHA * (w - c) for w, c in zip(clients[i], center)]
        center = [c + d for c, d in zip(center, difference)]
        clients[i] = [w - d for w, d in zip(clients[i], difference)]
        yield [*center, *clients[i]]


def diloco():
    center, momentum, clients = list(CENTER), [0.0, 0.0], [list(CENTER), list(CENTER)]
    for i in ORDER:
        clients[i] = [w + s for w, s in zip(clients[i], STEPS[i])]
        gradient = [c - w for c, w in zip(center, clients[i])]
        momentum = [MOMENTUM * m + g for m, g in zip(momentum, gradient)]
        center = [c - LR * (g + MOMENTUM * m) for c, g, m in zip(center, gradient, momentum)]
        clients[i] = list(center)
        yield [*center, *clients[i]]


def delayed_nesterov():
    center, momentum, buffer = list(CENTER), [0.0, 0.0], [0.0, 0.0]
    clients, given = [list(CENTER), list(CENTER)], [list(CENTER), list(CENTER)]
    for t, i in enumerate(ORDER):
        clients[i] = [w + s for w, s in zip(clients[i], STEPS[i])]
        gradient = [g - w for g, w in zip(given[i], clients[i])]
        buffer = [b + g for b, g in zip(buffer, gradient)]
        center = [c - LR * g / 2 for c, g in zip(center, gradient)]
        if (t + 1) % 2 == 0:
            momentum = [MOMENTUM * m + b / 2 for m, b in zip(momentum, buffer)]
            center = [c - LR * MOMENTUM * m for c, m in zip(center, momentum)]
            buffer = [0.0, 0.0]
        clients[i], given[i] = list(center), list(center)
        yield [*center, *clients[i]]


def dc_asgd():
    """The "gradients" are the fixed steps plus a tenth of what the client was given."""
    weight, momentum, given = list(CENTER), [0.0, 0.0], [list(CENTER), list(CENTER)]
    for i in ORDER:
        gradient = [s + 0.1 * b for s, b in zip(STEPS[i], given[i])]
        gradient = [g + LAMDA * g * g * (w - b) for g, w, b in zip(gradient, weight, given[i])]
        momentum = [MOMENTUM * m - 0.1 * g for m, g in zip(momentum, gradient)]
        weight = [w + m for w, m in zip(weight, momentum)]
        given[i] = list(weight)
        yield [*weight, *given[i]]


def staleness_aware():
    weight, given = list(CENTER), [list(CENTER), list(CENTER)]
    versions = [0, 0]
    for version, i in enumerate(ORDER):
        staleness = version - versions[i]
        rate = 0.1 / staleness if staleness > 1 else 0.1
        weight = [w - rate * (s + 0.1 * b) for w, s, b in zip(weight, STEPS[i], given[i])]
        given[i], versions[i] = list(weight), version + 1
        yield [*weight, *given[i]]


TRAJECTORIES = (elastic, diloco, delayed_nesterov, dc_asgd, staleness_aware)

if __name__ == "__main__":
    lines = [f' "{name}": {json.dumps(value)}' for name, value in (("center", CENTER), ("steps", STEPS))]
    lines.append(f' "order": {json.dumps(ORDER)}')
    for trajectory in TRAJECTORIES:
        states = ",\n  ".join(json.dumps(state) for state in trajectory())
        lines.append(f' "{trajectory.__name__}": [\n  {states}\n ]')
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
