"""A record that somebody holds is not read again, unless its file became another one."""

from pathlib import Path

from artifacts.records import Record, Records

KEY = "a" * 64


def record(seconds: float) -> Record:
    return Record(key=KEY, stage="corpus", node="1/1", parts={}, outputs={}, lineage={"seconds": seconds})


def test_it_is_read_once_while_it_is_held(tmp_path: Path) -> None:
    Records(tmp_path).put(record(1.5))
    first = Records(tmp_path).get("corpus", KEY)
    assert first == record(1.5) and Records(tmp_path).get("corpus", KEY) is first


def test_another_file_is_another_record(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.put(record(1.5))
    held = records.get("corpus", KEY)
    records.put(record(2.5))
    assert records.get("corpus", KEY) == record(2.5) != held
    path = records.path("corpus", KEY)
    path.write_bytes(path.read_bytes().replace(b"2.5", b"3.5"))
    assert records.get("corpus", KEY) is None, "its bytes are not those that were written"
    path.unlink()
    assert records.get("corpus", KEY) is None
