"""Which URLs a webhook may have: what leads inside is refused in any spelling, and so is what is unclear."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.faces.webhooks.addresses import is_public
from app.faces.webhooks.url import Endpoint, check_url, parse_url
from subscriptions.domain.errors import Code, GaplessError

NEVER = {
    "schemes": "ftp://a.example/ file:///etc/passwd gopher://a.example/ httpx://a.example ws://a.example",
    "no scheme": "a.example/x //a.example/x http:a.example http:/a.example ://a.example javascript:alert(1)",
    "no host": "http:// http:///x http://:80/ http://?x http://[]/ http://./ https://.:443/",
    "users": "http://user@a.example/ http://user:pass@a.example/ http://@a.example/ http://a@b@c.example/",
    "fragments": "http://a.example/# http://a.example/x#y http://a.example#@127.0.0.1/",
    "ports": "http://a.example:0/ http://a.example:65536/ http://a.example:x/ http://a.example:-1/"
    " http://a.example:/ http://a.example:80:80/ http://a.example:999999/ http://[::1]x:80/",
    "characters": "http://a.example\\@b/ http://a.example/\x00 http://bücher.example/ http://①②⑦.⓪.⓪.①/"
    ' http://a.example/ü http://127。0。0。1/ http://a.example/" http://a.example/<x> http://a|b/ http://a`b/',
    "names": "http://a..example/ http://.a.example/ http://a.example./ http://%31%32%37.0.0.1/ http://a*b/"
    f" http://a!b.example/ http://a,b.example/ http://{'a' * 64}.example/ http://{'a.' * 127}example/",
    "no addresses": "http://256.256.256.256/ http://1.2.3.4.5/ http://4294967296/ http://0x/ http://08.1/"
    " http://a.1/ http://1.2.3.0x/ http://[1.2.3.4]/ http://[::1/ http://::1/ http://[:::]/ http://[v1.x]/",
    "zones": "http://[fe80::1%25eth0]/ http://[fe80::1%eth0]/ http://[2600::1%251]/",
    "long": "http://a.example/" + "x" * 2048,
}
SPACED = [
    "",
    " ",
    "http://a.example/ x",
    " http://a.example/",
    "http://a.example/\r\nX: y",
    "http://a.example/\t",
]
INSIDE = {
    "names": "localhost LOCALHOST:8080 a.localhost",
    "loopback": "127.0.0.1 127.1 127.0.1:8080 127.255.255.254",
    "decimal": "2130706433 2852039166 0 3232235521",
    "octal": "0177.0.0.1 017700000001 0177.1 00000177.0.0.01",
    "hex": "0x7f.0.0.1 0x7f000001 0X7F.1 0xa9fea9fe 0x7f.0.0x0.1",
    "mixed": "0x7f.0.01 169.0376.43518 10.0xffffff",
    "metadata": "169.254.169.254 100.100.100.200 192.0.0.192 168.63.129.16 [fd00:ec2::254]",
    "private": "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1",
    "documentation": "192.0.2.1 198.51.100.1 203.0.113.1 [2001:db8::1] [3fff::1]",
    "reserved": "0.0.0.0 0.1 198.18.0.1 192.88.99.1 224.0.0.1 240.0.0.1 255.255.255.255",
    "v6": "[::1] [::] [0:0:0:0:0:0:0:1] [fe80::1] [fc00::1] [ff02::1] [fec0::1] [100::1] [5f00::1] [2001::1]",
    "v4 in v6": "[::ffff:127.0.0.1] [::ffff:169.254.169.254] [::ffff:7f00:1] [::127.0.0.1] [::ffff:8.8.8.8]",
    "nat64": "[64:ff9b::127.0.0.1] [64:ff9b::a9fe:a9fe] [64:ff9b:1::7f00:1]",
    "6to4": "[2002:7f00:1::] [2002:a9fe:a9fe::1] [2002:808:808::1]",
    "other protocols": "a.example:22 a.example:25 a.example:993 8.8.8.8:1",
}
GOOD = {
    "https://a.example": Endpoint("https", "a.example", 443, "/"),
    "HTTPS://A.Example:8443/In?b=c&d=%20": Endpoint("https", "a.example", 8443, "/In?b=c&d=%20"),
    "http://a.example?x=http://127.0.0.1/": Endpoint("http", "a.example", 80, "/?x=http://127.0.0.1/"),
    "http://a.example:443/~u/@b/:c;d='e'": Endpoint("http", "a.example", 443, "/~u/@b/:c;d='e'"),
    "https://xn--bcher-kva.example/": Endpoint("https", "xn--bcher-kva.example", 443, "/"),
    "https://_hooks.my-app.example/": Endpoint("https", "_hooks.my-app.example", 443, "/"),
    "http://127.0.0.1.nip.example/": Endpoint("http", "127.0.0.1.nip.example", 80, "/"),
    "http://8.8.8.8/": Endpoint("http", "8.8.8.8", 80, "/"),
    "http://134744072:8080/": Endpoint("http", "8.8.8.8", 8080, "/"),
    "http://[2606:4700::1111]:8080/x": Endpoint("http", "2606:4700::1111", 8080, "/x"),
    "http://[64:ff9b::8.8.8.8]/": Endpoint("http", "64:ff9b::808:808", 80, "/"),
}


def flat(table: dict[str, str]) -> list[str]:
    return [item for items in table.values() for item in items.split(" ")]


def refused(url: str, allow_private: bool) -> str:
    with pytest.raises(GaplessError) as error:
        check_url(url, allow_private)
    assert error.value.code is Code.INVALID_REQUEST
    assert [wrong.field for wrong in error.value.errors] == ["push.url"]
    return error.value.detail


@pytest.mark.parametrize("allow_private", [True, False])
@pytest.mark.parametrize("url", flat(NEVER) + SPACED)
def test_what_is_no_plain_url_is_refused_whatever_is_allowed(url: str, allow_private: bool) -> None:
    assert refused(url, allow_private)


@pytest.mark.parametrize("host", flat(INSIDE))
def test_what_leads_inside_is_refused_unless_allowed(host: str) -> None:
    assert "must not lead to" in (why := refused(f"http://{host}/hook", allow_private=False)) or "port" in why
    check_url(f"http://{host}/hook", allow_private=True)


@pytest.mark.parametrize(("url", "endpoint"), list(GOOD.items()))
def test_what_leads_outside_is_read_once_and_for_all(url: str, endpoint: Endpoint) -> None:
    assert parse_url(url, allow_private=False) == endpoint


def test_the_host_header_names_port_and_brackets_where_they_are_needed() -> None:
    urls = ["https://a.example:443/", "http://a.example:443/", "http://[::1]/", "http://[::1]:8080/"]
    authorities = [parse_url(url, allow_private=True).authority for url in urls]
    assert authorities == ["a.example", "a.example:443", "[::1]", "[::1]:8080"]


@given(st.text(max_size=60).map("http://".__add__) | st.text(max_size=60))
def test_any_text_is_read_or_refused(url: str) -> None:
    try:
        endpoint = parse_url(url, allow_private=False)
    except GaplessError:
        return
    assert endpoint.target.startswith("/")
    assert url.isascii()


spellings = st.sampled_from(["{}", "0{:o}", "0x{:x}", "0X{:X}", "0x0{:x}", "000{:o}"])


@given(st.ip_addresses(v=4), st.lists(spellings, min_size=4, max_size=4), st.integers(1, 4))
def test_an_address_is_judged_alike_in_every_spelling(
    address: IPv4Address, spelling: list[str], parts: int
) -> None:
    value = int(address)
    octets = [value >> 8 * (3 - index) & 0xFF for index in range(parts - 1)]
    last = value & (1 << 8 * (5 - parts)) - 1
    host = ".".join(form.format(part) for form, part in zip(spelling, [*octets, last], strict=False))
    if is_public(address):
        assert parse_url(f"http://{host}/", allow_private=False).host == str(address)
    else:
        refused(f"http://{host}/", allow_private=False)
    assert parse_url(f"http://{host}/", allow_private=True).host == str(address)


@given(st.ip_addresses())
def test_no_address_is_public_that_the_standard_library_says_is_not(
    address: IPv4Address | IPv6Address,
) -> None:
    nat64 = str(address).startswith("64:ff9b::")
    assert address.is_global or nat64 or not is_public(address)


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "8.8.8.8", "100.128.0.1", "172.32.0.1", "2600::1", "2a00:1450::1"]
)
def test_ordinary_addresses_are_public(text: str) -> None:
    assert is_public(ip_address(text))
