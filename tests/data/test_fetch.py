import hashlib
import io
import tarfile

import pytest

from fedqssl.data.fetch import cache_folder, download, unpack
from fedqssl.data.images import DataError

BODY = bytes(range(256)) * 1000  # what the server of conftest.py serves
MD5 = hashlib.md5(BODY).hexdigest()


def test_fetched_once_with_progress(server, tmp_path):
    seen = []
    target = download(server.url, tmp_path / "new" / "x", MD5, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == BODY and seen[-1] == (len(BODY), len(BODY)) and seen == sorted(seen)
    download(server.url, target, MD5)
    assert server.requests == [None] and [p.name for p in target.parent.iterdir()] == ["x"]


def test_resumes_after_cuts_where_it_stopped(server, tmp_path):
    server.cuts = [100_000, 50_000]
    assert download(server.url, tmp_path / "x", MD5).read_bytes() == BODY
    assert server.requests == [None, "bytes=100000-", "bytes=150000-"]


def test_resumes_a_part_of_an_earlier_run(server, tmp_path):
    (tmp_path / "x.part").write_bytes(BODY[:70_000])
    assert download(server.url, tmp_path / "x", MD5).read_bytes() == BODY
    assert server.requests == ["bytes=70000-"]


def test_a_server_without_ranges_starts_anew(server, tmp_path):
    server.ranges = False
    (tmp_path / "x.part").write_bytes(b"?" * 300_000)
    assert download(server.url, tmp_path / "x", MD5).read_bytes() == BODY


@pytest.mark.parametrize("part", [BODY, BODY + b"too long"])
def test_a_whole_or_too_long_part(server, tmp_path, part):
    (tmp_path / "x.part").write_bytes(part)
    assert download(server.url, tmp_path / "x", MD5).read_bytes() == BODY


def test_two_files_of_one_md5_are_told_apart(server, tmp_path):
    """MD5 alone stops accidents, but not somebody who makes another file for the same checksum."""
    right = hashlib.sha256(BODY).hexdigest()
    assert download(server.url, tmp_path / "x", MD5, sha256=right).read_bytes() == BODY
    with pytest.raises(DataError, match=r"SHA256 checksum is .* try again"):
        download(server.url, tmp_path / "y", MD5, sha256="0" * 64)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DataError, match=r"checksum is .* try again"):
        download(server.url, tmp_path / "x", "0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_in_the_way_is_replaced(server, tmp_path):
    (tmp_path / "x").write_bytes(b"half")
    assert download(server.url, tmp_path / "x", MD5).read_bytes() == BODY


def test_gives_up_with_one_line_and_keeps_the_part(server, tmp_path):
    server.cuts = [1000, 0, 0, 0, 0, 0]
    with pytest.raises(DataError, match=r"interrupted after 1000 .* run again to resume") as caught:
        download(server.url, tmp_path / "x", MD5)
    assert "\n" not in str(caught.value) and (tmp_path / "x.part").stat().st_size == 1000
    server.status = 404
    with pytest.raises(DataError, match="404"):
        download(server.url, tmp_path / "x", MD5)


def test_nobody_listens(server, tmp_path):
    server.http.server_close()
    with pytest.raises(DataError, match="check the network"):
        download(server.url, tmp_path / "x", MD5)


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="FEDQSSL_CACHE"):
        download(server.url, tmp_path / "file" / "x", MD5)


def archive(path, names):
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"hi"))
    return path


def test_unpack(tmp_path):
    folder = unpack(archive(tmp_path / "a.tar.gz", ["top/one", "top/two"]), "top", tmp_path / "out")
    assert sorted(p.name for p in folder.iterdir()) == ["one", "two"] and len(list((tmp_path / "out").iterdir())) == 1


@pytest.mark.parametrize("names, message", [(["top/x", "../evil"], "unpacked"), (["other/x"], "no folder top")])
def test_unpack_refuses(tmp_path, names, message):
    with pytest.raises(DataError, match=message):
        unpack(archive(tmp_path / "a.tar.gz", names), "top", tmp_path / "out")
    assert not (tmp_path / "evil").exists() and list((tmp_path / "out").iterdir()) == []


def test_unpack_of_a_damaged_archive(tmp_path):
    whole = archive(tmp_path / "a.tar.gz", ["top/x"]).read_bytes()
    for data in (whole[: len(whole) // 2], b"not a tar file"):
        (tmp_path / "b.tar.gz").write_bytes(data)
        with pytest.raises(DataError, match="fetch it again"):
            unpack(tmp_path / "b.tar.gz", "top", tmp_path / "out")


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDQSSL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FEDQSSL_CACHE")
    assert cache_folder().parts[-2:] == (".cache", "fedqssl")
