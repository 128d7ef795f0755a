"""A small cache whose every name was chosen to do harm."""

from __future__ import annotations

import numpy as np

import hurray_arrow as ha

#: What a display must not act on: markup, attributes, formulas, marks of direction, control characters, length.
NAMES = [
    "<script>alert('id')</script>",
    '"onload="alert(1)"><img src=x onerror=alert(2)>',
    "$\\frac{1}{$ and $x_{$",
    "\u202egpj.exe\u2066",
    "会話の名前 🦜 سجل",
    "</title></style><style>*{display:none}</style>",
    "{{ 7 * 7 }}{% for x in y %}&amp;",
    "a" * 3000,
    "line\nbreak\x00\x1b[31mred",
    "http://evil.example/x.png",
]
SECRETS = ["tenant-<b>7c1</b>", "adapter-9d2", "user-3e5", "another-tenant"]
MODEL = "<svg/onload=alert(3)>$m_{$\u202e"
LAYER = "layers.$0$.<b>attn</b>\u2067"


def hostile_tensors(*, layers=2, page_size=4):
    rng = np.random.default_rng(7)
    tables = [[0, 1, 2, *range(3 + 3 * number, 6 + 3 * number)] for number in range(len(NAMES))]
    lens = [page_size * 6 - number % page_size for number in range(len(NAMES))]
    return [
        ha.BlockPagedTensor.from_arrays(
            rng.normal(size=(37, page_size, 3, 5)).astype(np.float32) * (layer + 1),
            block_tables=tables,
            seq_lens=lens,
            ids=NAMES,
            tenant=[SECRETS[3]] * len(NAMES),
            adapter=["adapter-of-one"] * len(NAMES),
            token_ids=[[654321] * tokens for tokens in lens],
            kv_role=role,
            layer_index=layer or None,
            layer_name=f"{LAYER}{layer}",
        )
        for layer in range(layers)
        for role in ("key", "value")
    ]


def write_hostile(path, **options):
    metadata = {
        "model": {"name": MODEL, "revision": "\u202egnp.\n<i>"},
        "engine": {"name": "<marquee>"},
        "tenant": SECRETS[0],
        "adapter": SECRETS[1],
        "user": {"note": SECRETS[2]},
    }
    ha.write_snapshot(path, hostile_tensors(**options), metadata=metadata)
    return path
