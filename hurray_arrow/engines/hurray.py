"""pyhurray's tensors and ours in one process: the ``__hurray__`` protocol, through the C interface of its wheel.

A capsule named ``hurray_tensor`` points at a list of buffers and has a context with the descriptor's bytes and an
owner. Everything here goes through the functions that the wheel exports; capsules get the destructor and the name of
pyhurray's own, so that no Python runs when one dies, which may be while the interpreter shuts down.

Spec: pgillet/hurray ADR-023, ADR-030, ADR-033, ADR-034; ``hurray.h``, C interface version 4.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hurray_arrow.errors import CopyRequiredError, HurrayArrowError, MissingDependencyError, UnsupportedError
from hurray_arrow.mappings import private_copy
from hurray_arrow.memory import copy_of
from hurray_arrow.spec import MIN_ALIGNMENT_BYTES
from hurray_arrow.tensor import BlockPagedTensor

if TYPE_CHECKING:
    import hurray

Bytes = npt.NDArray[np.uint8]

ABI_VERSION = 4
CAPSULE_NAME = b"hurray_tensor"
CPU = 0
#: No page is copied; a table or parameter buffer is when it has to be.
_POOL = 0


class HurrayStatusError(HurrayArrowError, RuntimeError):
    """The C interface of pyhurray answered with an error.

    Parameters
    ----------
    function
        Its name.
    status
        The status code of ``hurray.h``; kept as ``.status``.
    """

    def __init__(self, function: str, status: int) -> None:
        self.status = status
        super().__init__(f"{function}: status {status}")


def to_hurray(tensor: BlockPagedTensor, *, copy: bool | None = None) -> hurray.Tensor:
    """Return a ``hurray.Tensor`` of a tensor's pages.

    Parameters
    ----------
    tensor
        The tensor; its facts about sequences have no place in a ``hurray.Tensor``.
    copy
        ``None``: pages that do not lie at a multiple of 64 bytes are copied. ``False``: they are refused, as
        ``hurray.from_hurray(tensor)`` does.

    Raises
    ------
    InvariantError
        The tensor breaks the specification.
    CopyRequiredError
        ``copy=False`` and the pages are not aligned.
    MissingDependencyError
        pyhurray is not installed.
    """
    module = imported_hurray()
    if copy is None and not _is_aligned(tensor.buffers[_POOL]):
        tensor = BlockPagedTensor.from_buffers(tensor.descriptor, [copy_of(tensor.buffers[_POOL]), *tensor.buffers[1:]])
    return module.from_hurray(tensor)


def tensor_capsule(tensor: BlockPagedTensor, stream: Any = None) -> Any:
    """Return a tensor as a capsule of the native protocol; behind :meth:`BlockPagedTensor.__hurray__`.

    A consumer trusts what it is given, and may write. So the tensor is checked first, and pages that lie in a mapped
    file or in shared memory are handed out in a private copy-on-write mapping of it: nothing is copied until somebody
    writes, and no write reaches the file, another process or this tensor. Pages elsewhere are handed out where they
    are. Tables and parameters are copied, to a multiple of 64 bytes: a stray write into the tensor's own would send its
    readers to pages that do not exist.

    Parameters
    ----------
    tensor
        The tensor. What is handed out lives as long as it, or as the capsule's context.
    stream
        Ignored: the memory is the CPU's.

    Raises
    ------
    InvariantError, QuantizationError
        The tensor breaks the specification.
    CopyRequiredError
        Its pages do not lie at a multiple of 64 bytes.
    MissingDependencyError
        pyhurray is not installed.
    UnsupportedError
        pyhurray has another version of the C interface.
    """
    del stream
    library = _library()
    tensor.check()
    buffers = _handed_out(tensor)
    handles = ctypes.c_void_p()
    context = ctypes.c_void_p()
    try:
        library.call("hurray_buffer_list_new", ctypes.c_uint64(len(buffers)), ctypes.byref(handles))
        for buffer in buffers:
            library.push(handles, buffer)
        descriptor = tensor.descriptor.encode()
        owner = (tensor, buffers)
        library.call(
            "hurray_tensor_context_new",
            ctypes.c_uint32(ABI_VERSION),
            ctypes.c_char_p(descriptor),
            ctypes.c_uint64(len(descriptor)),
            ctypes.c_void_p(id(owner)),
            library.release,
            ctypes.byref(context),
        )
        # The context owns a reference now, which its release function gives back.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        return library.new_capsule(handles, context)
    except BaseException:
        library.call("hurray_tensor_context_destroy", ctypes.byref(context))
        library.call("hurray_buffer_list_destroy", ctypes.byref(handles))
        raise


def tensor_of(source: Any, *, loaded: bool = False, **facts: Any) -> BlockPagedTensor:
    """Build a tensor on the memory of anything with ``__hurray__``; behind :meth:`BlockPagedTensor.from_hurray`.

    Parameters
    ----------
    source
        A block-paged tensor.
    loaded
        It was read from a file into the CPU's memory, whatever device its descriptor names.
    **facts
        As of :meth:`BlockPagedTensor.from_buffers`.
    """
    library = _library()
    if not hasattr(source, "__hurray__"):
        raise TypeError(f"{type(source).__name__} has no __hurray__")
    capsule = source.__hurray__()
    handles = library.pointer_of(capsule)
    context = library.context_of(capsule)
    version = ctypes.c_uint32()
    library.call("hurray_tensor_context_abi_version", context, ctypes.byref(version))
    if version.value != ABI_VERSION:
        raise UnsupportedError(f"C interface version {version.value} of pyhurray, this library knows {ABI_VERSION}")
    count = ctypes.c_uint64()
    library.call("hurray_buffer_list_len", handles, ctypes.byref(count))
    if not loaded:
        library.check_device(handles)
    buffers = [np.asarray(library.memory_of(handles, index, capsule)) for index in range(count.value)]
    return BlockPagedTensor.from_buffers(library.descriptor_of(context), buffers, **facts)


# -- memory ------------------------------------------------------------------------------------------------------------

#: What was handed out of each tensor: ``from_hurray`` keeps only the tensor alive, and the capsule not at all.
_HANDED_OUT: weakref.WeakKeyDictionary[BlockPagedTensor, tuple[Bytes, ...]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def _handed_out(tensor: BlockPagedTensor) -> tuple[Bytes, ...]:
    with _LOCK:
        buffers = _HANDED_OUT.get(tensor)
        if buffers is None:
            pool, *small = tensor.buffers
            if not _is_aligned(pool):
                raise CopyRequiredError(
                    f"page_pool: at {pool.ctypes.data:#x}, which is no multiple of {MIN_ALIGNMENT_BYTES} bytes; pages "
                    "in a snapshot are, and hurray_arrow.engines.hurray.to_hurray() copies them"
                )
            shared = private_copy(pool)
            buffers = (pool if shared is None else shared, *map(copy_of, small))
            _HANDED_OUT[tensor] = buffers
    return buffers


def _is_aligned(buffer: Bytes) -> bool:
    return not buffer.nbytes or buffer.ctypes.data % MIN_ALIGNMENT_BYTES == 0


class _Memory:
    """A buffer of a capsule as numpy reads it; keeps the capsule, which keeps the producer's tensor."""

    def __init__(self, address: int, size_bytes: int, capsule: Any) -> None:
        self._capsule = capsule
        self.__array_interface__ = {"data": (address, True), "shape": (size_bytes,), "typestr": "|u1", "version": 3}


# -- the C interface ---------------------------------------------------------------------------------------------------


def imported_hurray() -> Any:
    """Return pyhurray's module.

    Raises
    ------
    MissingDependencyError
        It is not installed.
    """
    try:
        import hurray
    except ImportError as error:
        raise MissingDependencyError("pyhurray", extra="hurray") from error
    return hurray


@cache
def _library() -> _Library:
    return _Library(imported_hurray())


class _Library:
    """The functions that pyhurray's extension module exports, and what its own capsules are made of."""

    def __init__(self, module: Any) -> None:
        # PyDLL: the owner's release touches Python objects, so the GIL stays.
        self._functions = ctypes.PyDLL(module.hurray.__file__)
        self._functions.hurray_c_abi_version.restype = ctypes.c_uint32
        version = self._functions.hurray_c_abi_version()
        if version != ABI_VERSION:
            raise UnsupportedError(f"pyhurray has C interface version {version}, this library knows {ABI_VERSION}")
        self.release = ctypes.cast(ctypes.pythonapi.Py_DecRef, ctypes.c_void_p)
        python = ctypes.PyDLL(None)
        self._get_pointer = _typed(python.PyCapsule_GetPointer, ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
        self._get_context = _typed(python.PyCapsule_GetContext, ctypes.c_void_p, ctypes.py_object)
        self._set_context = _typed(python.PyCapsule_SetContext, ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
        self._new = _typed(python.PyCapsule_New, ctypes.py_object, *[ctypes.c_void_p] * 3)
        sample = module.Tensor(bytes(1), module.uint8, [1]).__hurray__()
        self._name = _typed(python.PyCapsule_GetName, ctypes.c_void_p, ctypes.py_object)(sample)
        self._destructor = _typed(python.PyCapsule_GetDestructor, ctypes.c_void_p, ctypes.py_object)(sample)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function, and raise what is not success."""
        status = getattr(self._functions, function)(*arguments)
        if status:
            raise HurrayStatusError(function, status)

    def push(self, handles: ctypes.c_void_p, buffer: Bytes) -> None:
        """Append a buffer to a list."""
        handle = ctypes.c_void_p()
        self.call(
            "hurray_buffer_from_ptr",
            ctypes.c_void_p(buffer.ctypes.data),
            ctypes.c_uint64(buffer.nbytes),
            ctypes.c_uint32(MIN_ALIGNMENT_BYTES if buffer.nbytes else 1),
            *[ctypes.c_uint8(0)] * 3,
            None,
            None,
            ctypes.byref(handle),
        )
        try:
            self.call("hurray_buffer_list_push", handles, handle)
        except HurrayStatusError:
            self.call("hurray_buffer_destroy", handle)
            raise

    def new_capsule(self, handles: ctypes.c_void_p, context: ctypes.c_void_p) -> Any:
        """Return a capsule that owns both."""
        capsule = self._new(handles.value, self._name, self._destructor)
        self._set_context(capsule, context.value)
        return capsule

    def pointer_of(self, capsule: Any) -> ctypes.c_void_p:
        """Return a capsule's list of buffers, which it keeps."""
        return ctypes.c_void_p(self._get_pointer(capsule, CAPSULE_NAME))

    def context_of(self, capsule: Any) -> ctypes.c_void_p:
        """Return a capsule's context, which it keeps."""
        return ctypes.c_void_p(self._get_context(capsule))

    def descriptor_of(self, context: ctypes.c_void_p) -> bytes:
        """Return a copy of the descriptor's bytes."""
        start, size = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("hurray_tensor_context_descriptor", context, ctypes.byref(start), ctypes.byref(size))
        return ctypes.string_at(start.value or 0, size.value)

    def check_device(self, handles: ctypes.c_void_p) -> None:
        """Refuse a device's memory; all buffers of a tensor are on the same.

        Raises
        ------
        UnsupportedError
            The buffers are not in the CPU's memory.
        """
        handle, device = ctypes.c_void_p(), ctypes.c_uint8()
        self.call("hurray_buffer_list_get", handles, ctypes.c_uint64(0), ctypes.byref(handle))
        self.call("hurray_buffer_device_tag", handle, ctypes.byref(device))
        if device.value != CPU:
            raise UnsupportedError(f"the buffers lie in the memory of device {device.value}; only the CPU's is read")

    def memory_of(self, handles: ctypes.c_void_p, index: int, capsule: Any) -> _Memory:
        """Return a buffer of a list."""
        handle, start, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("hurray_buffer_list_get", handles, ctypes.c_uint64(index), ctypes.byref(handle))
        self.call("hurray_buffer_data_ptr", handle, ctypes.byref(start))
        self.call("hurray_buffer_byte_size", handle, ctypes.byref(size))
        return _Memory(start.value or 0, size.value, capsule)


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function
