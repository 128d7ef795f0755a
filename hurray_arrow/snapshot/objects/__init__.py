"""Objects in stores; :func:`object_at` finds out which kind a filesystem wants."""

from __future__ import annotations

from hurray_arrow.snapshot.objects.azure import AzureObject
from hurray_arrow.snapshot.objects.gcs import GcsObject
from hurray_arrow.snapshot.objects.generic import GenericObject
from hurray_arrow.snapshot.objects.http import HttpObject
from hurray_arrow.snapshot.objects.obstore import ObstoreObject
from hurray_arrow.snapshot.objects.s3 import S3Object
from hurray_arrow.snapshot.objects.store_object import StoreObject
from hurray_arrow.snapshot.stores import Place

_KINDS: dict[str, type[StoreObject]] = {
    "s3fs.core.S3FileSystem": S3Object,
    "gcsfs.core.GCSFileSystem": GcsObject,
    "adlfs.spec.AzureBlobFileSystem": AzureObject,
    "obstore.fsspec.FsspecStore": ObstoreObject,
    "fsspec.implementations.http.HTTPFileSystem": HttpObject,
}


def object_at(place: Place) -> StoreObject:
    """Return the object at a place."""
    kinds = place.kinds()
    return next((kind for name, kind in _KINDS.items() if name in kinds), GenericObject)(place)
