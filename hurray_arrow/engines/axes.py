"""An engine's array whose axes have letters: sizes checked one by one, memory order read from the strides.

Sizes, strides and offsets are Python integers, so that no product of a large pool wraps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hurray_arrow.engines.arrays import Words
from hurray_arrow.errors import LayoutError


@dataclass(frozen=True, slots=True, eq=False)
class NamedAxes:
    """A strided array of words and the letters of its axes, without axes of size 1 called ``1``.

    Parameters
    ----------
    words
        The engine's memory.
    axes
        One letter per axis, as in :mod:`hurray_arrow.engines.layouts`.
    where
        The layer and its layout, for messages.
    """

    words: Words
    axes: str
    where: str

    @classmethod
    def of(
        cls, words: Words, *, shapes: Sequence[str], memory: str, sizes: Mapping[str, int | None], where: str
    ) -> NamedAxes:
        """Name an array's axes after checking their number, each one's size, and their order in memory.

        Parameters
        ----------
        words
            The engine's memory.
        shapes
            The letters that an array of a number of axes may have.
        memory
            Letters in memory order, outermost first.
        sizes
            The size that an axis has to have; ``None`` for any. ``N`` is the page size.
        where
            The layer and its layout, for messages.

        Returns
        -------
        NamedAxes
            Token slots (``S``) split into ``B`` and ``N``.

        Raises
        ------
        LayoutError
            With the expected and the actual size, order or stride.
        """
        fitting = [axes for axes in shapes if len(axes) == words.ndim]
        # Of shapes with equally many axes those fit first whose axes of size 1 are of size 1.
        fitting.sort(key=lambda axes: any(n != 1 for n, axis in zip(words.shape, axes, strict=True) if axis == "1"))
        if not fitting:
            known = " or ".join(f"[{', '.join(axes)}]" for axes in shapes)
            message = f"{where}: shape {words.shape} has {words.ndim} axes, expected {known}"
            raise LayoutError(message, expected=[len(axes) for axes in shapes], actual=words.ndim)
        axes, page_size = fitting[0], sizes["N"] or 1
        for place, axis in enumerate(axes):
            found, expected = words.shape[place], sizes.get(axis)
            if axis == "S" and found % page_size:
                message = f"{where}: axis {place} has {found} token slots, expected a multiple of page_size {page_size}"
                raise LayoutError(message, expected=page_size, actual=found)
            if expected is not None and found != expected:
                message = f"{where}: axis {place} ({axis}) has {found}, expected {expected}"
                raise LayoutError(message, expected=expected, actual=found)
        ones = tuple(place for place, axis in enumerate(axes) if axis == "1")
        named = cls(words.squeeze(ones), axes.replace("1", ""), where)
        named = named.split_slots(page_size)
        named.check_order(memory)
        return named

    def size(self, axis: str) -> int:
        """Give the size of an axis; 1 where there is no such axis."""
        return self.words.shape[self.axes.index(axis)] if axis in self.axes else 1

    def stride(self, axis: str) -> int:
        """Give the stride of an axis in bytes; 0 where there is no such axis."""
        return self.words.strides[self.axes.index(axis)] if axis in self.axes else 0

    def check_dense(self, *axes: str) -> None:
        """Refuse gaps between the entries of the innermost axes, which are named from the inside out.

        Raises
        ------
        LayoutError
            With the expected and the actual stride.
        """
        expected = self.words.itemsize
        for axis in axes:
            if self.words.size and self.size(axis) > 1 and self.stride(axis) != expected:
                message = (
                    f"{self.where}: entries of axis {axis} are {self.stride(axis)} bytes apart, expected {expected}"
                )
                raise LayoutError(message, expected=expected, actual=self.stride(axis))
            expected *= self.size(axis)

    def pages(self, **take: int | slice) -> Words:
        """Give the view ``[B, N, H, words]`` of what ``take`` leaves of other axes; without heads H is 1.

        Parameters
        ----------
        **take
            An entry of an axis, or a range of the last one, by the axis's letter; axis 2 is ``role``.

        Returns
        -------
        numpy.ndarray
            A view of the engine's memory, writable where that is.
        """
        wanted = {axis.replace("role", "2"): which for axis, which in take.items()}
        picked = self.words[tuple(wanted.get(axis, slice(None)) for axis in self.axes)]
        left = [axis for axis in self.axes if not isinstance(wanted.get(axis), int)]
        view = picked.transpose([left.index(axis) for axis in "BNHDC" if axis in left])
        return view if "H" in left else view[:, :, np.newaxis]

    def inside_heads(self, *, first_word: int, words: int, slot_words: int, step_words: int) -> Words:
        """Give ``[B, N, H, words]`` of the dense memory of each head of a page.

        Parameters
        ----------
        first_word
            Where it begins in a head's memory.
        words
            Words of a slot.
        slot_words, step_words
            From a slot to the next, and from a word of a slot to the next, in words.

        Returns
        -------
        numpy.ndarray
            A view of the engine's memory, writable where that is.
        """
        shape = (self.size("B"), self.size("N"), self.size("H"), words)
        if not self.words.size:
            return self.words.reshape(-1)[:0].reshape(*shape)
        item = self.words.itemsize
        steps = (self.stride("B"), slot_words * item, self.stride("H"), step_words * item)
        head = as_strided(self.words, (self.size("N") * self.size("C"),), (item,), writeable=self.words.flags.writeable)
        return as_strided(head[first_word:], shape, steps, writeable=self.words.flags.writeable)

    def split_slots(self, page_size: int) -> NamedAxes:
        """Give the same memory with token slots (``S``) as pages and their slots."""
        if "S" not in self.axes:
            return self
        at = self.axes.index("S")
        shape, strides, slot = self.words.shape, self.words.strides, self.words.strides[at]
        words = as_strided(
            self.words,
            (*shape[:at], shape[at] // page_size, page_size, *shape[at + 1 :]),
            (*strides[:at], slot * page_size, slot, *strides[at + 1 :]),
            writeable=self.words.flags.writeable,
        )
        return NamedAxes(words, self.axes.replace("S", "BN"), self.where)

    def check_order(self, memory: str) -> None:
        """Refuse another memory order than the named one, and axes that lie over each other.

        Raises
        ------
        LayoutError
            With both orders, without axes of size 1, or with an axis's stride and the least it has to be.
        """
        if not self.words.size:
            return
        # Axes of size 1 tie: their stride says nothing.
        named = [axis for axis in memory if self.size(axis) > 1]
        # The sort is stable, so equal strides keep the named order and are found as an overlap.
        actual = sorted(named, key=self.stride, reverse=True)
        if actual != named:
            expected, found = "".join(named), "".join(actual)
            message = f"{self.where}: strides {self.words.strides} are memory order {found}, expected {expected}"
            raise LayoutError(message, expected=expected, actual=found)
        room = self.words.itemsize
        for axis in reversed(named):
            if self.stride(axis) < room:
                message = (
                    f"{self.where}: axis {axis} has a stride of {self.stride(axis)} bytes, expected {room} or more"
                )
                raise LayoutError(message, expected=room, actual=self.stride(axis))
            room = self.stride(axis) * self.size(axis)
