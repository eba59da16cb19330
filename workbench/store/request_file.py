"""The file with the requests of a result: small enough to keep it for each result.

Most of it are the gaps between the chunks. They are stored exactly if the file is small enough, and
otherwise as arrival times that are rounded to 10 us, and for large benchmarks up to 0.1 s. Of more
requests than fit, each second, third and so on is kept. The metrics of a result were computed
before, from all requests and exact times. Files of earlier versions are lines of JSON in gzip.
"""

from __future__ import annotations

import gzip
import json
import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from math import ceil
from operator import floordiv, sub
from typing import Any

from workbench.model.bench import KEPT_ONE_OF

MOST_BYTES = 20_000
RESOLUTIONS_US = (1, 10, 100, 1000, 10_000, 100_000)
RESOLUTION = "gap_resolution_us"  # a field of each request whose gaps were rounded
_MOST_ROWS_BYTES = 15_000  # of the file; the rest is for the gaps
_MAGIC = b"WBR1"
_HEAD = struct.Struct("<4sIII")  # magic, resolution, bytes of the rows, checksum
_GZIP = b"\x1f\x8b"
_GAPS = "gaps_us"
_STEPS_EACH = 4  # gaps, or more: then a search for each step of the rounded times is faster
_TRIED = 8192  # gaps from which the size of all is estimated,
_TRIED_ROWS = 1024  # and requests
_to_json = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make one each time
_PLANES = 4  # bytes of a gap: equal bytes of all gaps stand together, which compresses better


def encode_requests(samples: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the file for requests, each as `RequestRecord.as_json` returns it."""
    every = list(samples)
    rows, all_gaps = _compress_rows_and_collect_gaps(_sample_evenly(every, _TRIED_ROWS))
    each = len(rows) / min(max(len(every), 1), _TRIED_ROWS)
    one_of = ceil(each * len(every) / _MOST_ROWS_BYTES)
    if one_of > 1 or len(every) > _TRIED_ROWS:
        rows, all_gaps = _compress_rows_and_collect_gaps(every[::one_of], one_of)
    resolution_us = _finest_fitting_resolution_us(all_gaps, MOST_BYTES - len(rows))
    body = rows + _compress_gaps(all_gaps, resolution_us)
    checksum = _file_checksum(resolution_us, len(rows), body)
    return _HEAD.pack(_MAGIC, resolution_us, len(rows), checksum) + body


def _sample_evenly(samples: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """Return at most `most` requests, evenly spread."""
    return samples[:: ceil(len(samples) / most)] if len(samples) > most else samples


def _compress_rows_and_collect_gaps(
    samples: Sequence[Mapping[str, Any]], kept_one_of: int = 1
) -> tuple[bytes, list[array[int]]]:
    """Return (compressed rows, gaps of each request whose gaps are whole numbers). Gaps that are
    not stay in their row. One of `kept_one_of` requests is kept; from 2 on, each row says so."""
    lines: list[str] = []
    all_gaps: list[array[int]] = []
    kept = {KEPT_ONE_OF: kept_one_of} if kept_one_of > 1 else {}
    for sample in samples:
        row, gaps = {**sample, **kept}, _gaps_as_int_array(sample.get(_GAPS))
        if gaps is not None:
            del row[_GAPS]
            all_gaps.append(gaps)
        lines.append(_to_json([None if gaps is None else len(gaps), row]))
    return zlib.compress("\n".join(lines).encode(), 6), all_gaps


def _file_checksum(resolution_us: int, length: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack("<II", resolution_us, length)))


def decode_requests(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the requests of a file. Raises ValueError, EOFError, OSError, struct.error or
    zlib.error if the file is damaged."""
    if data[:2] == _GZIP:
        for line in gzip.decompress(data).decode().splitlines():
            yield json.loads(line)
        return
    magic, resolution_us, length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC:
        raise ValueError("this is no file of requests")
    if checksum != _file_checksum(resolution_us, length, body):
        raise ValueError("a byte of the file has changed")
    text = zlib.decompress(body[:length]).decode()
    gaps = _join_byte_planes(zlib.decompress(body[length:]))
    at = 0
    for line in text.splitlines():
        count, row = json.loads(line)
        if count is not None:
            own = gaps[at : at + count]
            if len(own) != count:
                raise ValueError("gaps of a request are missing")
            at += count
            row[_GAPS] = [gap * resolution_us for gap in own]
            if resolution_us > 1:
                row[RESOLUTION] = resolution_us
        yield row


def _gaps_as_int_array(gaps: Sequence[Any] | None) -> array[int] | None:
    """Return gaps as an array. None if there are none, or one of them is no number of
    microseconds."""
    if not gaps:
        return None
    try:
        numbers = array("i", gaps)
    except (TypeError, OverflowError):
        return None
    return numbers if min(numbers) >= 0 else None


def _finest_fitting_resolution_us(all_gaps: Sequence[array[int]], most_bytes: int) -> int:
    """Return the finest resolution, in microseconds, with which the gaps take at most `most_bytes`
    bytes, as estimated from the first requests. If none suffices, return the coarsest."""
    count = sum(map(len, all_gaps))
    tried: list[array[int]] = []
    for gaps in all_gaps:
        if sum(map(len, tried)) >= _TRIED:
            break
        tried.append(gaps)
    share = sum(map(len, tried)) / max(count, 1)
    for resolution_us in RESOLUTIONS_US:
        if len(_compress_gaps(tried, resolution_us)) <= most_bytes * share:
            return resolution_us
    return RESOLUTIONS_US[-1]


def _compress_gaps(all_gaps: Sequence[array[int]], resolution_us: int) -> bytes:
    numbers = array("i")
    for gaps in all_gaps:
        numbers.extend(gaps if resolution_us == 1 else _round_gaps(gaps, resolution_us))
    if sys.byteorder == "big":
        numbers.byteswap()
    data = numbers.tobytes()
    return zlib.compress(b"".join(data[plane::_PLANES] for plane in range(_PLANES)), 6)


def _round_gaps(gaps: array[int], resolution_us: int) -> array[int]:
    """Return the gaps between the arrival times, rounded to `resolution_us` and in that unit. The
    times are rounded, not the gaps, so that errors do not add up."""
    half_later = list(accumulate(gaps, initial=resolution_us // 2))
    last = half_later[-1] // resolution_us
    if _STEPS_EACH * last > len(gaps):
        steps = list(map(floordiv, half_later, repeat(resolution_us)))
        return array("i", map(sub, steps[1:], steps))
    # most gaps are 0: it is faster to look for the others
    rounded = array("i", bytes(len(gaps) * gaps.itemsize))
    for step in range(1, last + 1):
        rounded[bisect_left(half_later, step * resolution_us) - 1] += 1
    return rounded


def _join_byte_planes(data: bytes) -> array[int]:
    count = len(data) // _PLANES
    joined = bytearray(count * _PLANES)
    for plane in range(_PLANES):
        joined[plane::_PLANES] = data[plane * count : (plane + 1) * count]
    numbers = array("I")
    numbers.frombytes(bytes(joined))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
