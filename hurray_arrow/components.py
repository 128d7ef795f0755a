"""Components of a layer, ``values`` and its companions, and what their names say of pages and heads.

Spec: snapshot format section 2, companions.
"""

from __future__ import annotations

_WHOLE_PAGES = "page."
_HEADED = ("values", "state.")
_WITHOUT_HEADS = ("indexer", "record.")


def means_whole_pages(component: str) -> bool:
    """Say whether only whole pages have meaning: those of ``page.<name>``."""
    return component.startswith(_WHOLE_PAGES)


def follows_heads(component: str) -> bool | None:
    """Say whether heads are those of the model, which tensor-parallel ranks share out, or every rank has all of them.

    ``None`` where the name does not tell, as of scales: one per head, or one for all.
    """
    if component.startswith(_HEADED):
        return True
    return False if component.startswith(_WITHOUT_HEADS) else None
