"""What a good message is stands once in Python, for HTTP, and once in SQL, for all else: one verdict on every
input. And what SQL refuses, `gapless.publish` refuses."""

from __future__ import annotations

import json
import random
from dataclasses import astuple, dataclass, replace

import asyncpg
import pytest

from app.message.head import read_head
from app.message.json import one_line
from app.message.publish import parse_publication
from subscriptions.domain.errors import GaplessError
from tests.race.support import check_log, rows

HEAD = read_head([(b"content-type", b"application/json")])


@dataclass(frozen=True, slots=True)
class Input:
    """A message as somebody gives it: `data` and `headers` are texts that may be JSON."""

    channel: str = "a"
    type: str = "message"
    key: str | None = None
    data: str = "1"
    headers: str | None = None
    ttl: float | None = None


def accepted(given: Input) -> bool:
    """The verdict over HTTP."""
    body = f'{{"data":{given.data},"type":{json.dumps(given.type)}'
    if given.key is not None:
        body += f',"key":{json.dumps(given.key)}'
    if given.headers is not None:
        body += f',"headers":{given.headers}'
    if given.ttl is not None:
        body += f',"ttl":{given.ttl!r}'
    try:
        parse_publication(given.channel, HEAD, (body + "}").encode(), now_us=0)
    except GaplessError:
        return False
    return True


def nested(levels: int, inner: str = "1", kind: str = "[]") -> str:
    opening, closing = ("[", "]") if kind == "[]" else ('{"a":', "}")
    return opening * levels + inner + closing * levels


BAD_DATA = [
    nested(33),
    nested(5000),
    nested(200_000),
    nested(33, kind="{}"),
    f'{{"a":{nested(16)},"b":[{nested(32)}]}}',
    "1e100000",
    "[1e309]",
    "-1e309",
    "1" * 400,
    "18446744073709551616",
    "-9223372036854775809",
    "1e-399999",
    "[1e-330]",
    "1." + "0" * 15_000,
    '{"a":1,"a":2}',
    r'{"a":1,"\u0061":2}',
    '[{"b":{"a":1,"b":2,"a":3}}]',
    r'"\u0000"',
    r'{"a\u0000":1}',
    r'"\ud800"',
    r'"\udc00x"',
    r'{"\ud800":1}',
    "NaN",
    "[Infinity]",
    "",
    "{",
    "[1,]",
    "1 2",
    "1\u00a0",
    "\ufeff1",
    "01",
    "'a'",
    '"\t"',
    '"' + "x" * 1048576 + '"',
]
GOOD_DATA = [
    nested(32),
    nested(31, "{}"),
    "[" + ",".join(["[[]]"] * 40) + "]",
    "1e308",
    "1.7976931348623158e308",
    "5e-324",
    "1e-300",
    "0e999",
    "0.0e99999",
    "18446744073709551615",
    "-9223372036854775808",
    "1e30",
    "123456789012345678901234567890.5",
    "0." + "0" * 400 + "1",
    r'"\\u0000 1e999 [[[["',
    r'"\ud83d\ude00"',
    '"12345678901234567890"',
    '{"a":{"a":{"a":1}},"b":"\\"a\\":"}',
    " [ 1 ,\t2 ] ",
    "[\n1,\r\n2]",
    "null",
    '"' + "x" * 1048574 + '"',
]
JOURNEY = {"gapless-journey": "x" * 100_000}
BAD = [
    *(Input(data=data) for data in BAD_DATA),
    *(Input(channel=name) for name in ("", ".", "a.", "a..b", "ä", "a b", "a\n", "x" * 256, "a.*", ">")),
    *(Input(type=kind) for kind in ("", "x" * 129, "a\n", "\x7f", "a\x9fb", "\x1b[31m")),
    *(Input(key=key) for key in ("x" * 256, "a\nb", "\x85")),
    *(Input(ttl=ttl) for ttl in (0.0, -1.0, 315360001.0, 1e300)),
    Input(headers='{"":"x"}'),
    Input(headers=r'{"a":"x\u0007"}'),
    Input(headers=r'{"a\u009f":"x"}'),
    Input(headers=r'{"a":"\ud800"}'),
    Input(headers='{"a":1}'),
    Input(headers='{"a":null}'),
    Input(headers='["a"]'),
    Input(headers='"a"'),
    Input(headers='{"a":"1","a":"2"}'),
    Input(headers=json.dumps({f"h{n}": "" for n in range(65)})),
    Input(headers=json.dumps({"a": "x" * 8192})),
    Input(headers=json.dumps({"a": "ä" * 4096}, ensure_ascii=False)),
    Input(headers=json.dumps({**JOURNEY, "a": "x" * 8192})),
    Input(headers=json.dumps({**JOURNEY, **{f"h{n}": "" for n in range(65)}})),
    Input(headers=json.dumps({"gapless-journey": "x" * (2**20 - 14)})),
    Input(headers=json.dumps({"gapless-journey": "a\x07"})),
    Input(headers=json.dumps({"gapless-journeys": "x" * 8192})),
]
GOOD = [
    *(Input(data=data) for data in GOOD_DATA),
    *(Input(channel=name) for name in ("x" * 255, "a.b.c", "a~:@-_9", "9")),
    *(Input(type=kind) for kind in ("x" * 128, "ä" * 128, "a b")),
    *(Input(key=key) for key in ("", "x" * 255, "\u00a0", "\u2028", "😀" * 255)),
    *(Input(ttl=ttl) for ttl in (0.001, 1.0, 315360000.0)),
    Input(headers="{}"),
    Input(headers=json.dumps({f"h{n}": "" for n in range(64)})),
    Input(headers=json.dumps({"a": "x" * 8191})),
    Input(headers=json.dumps({"a": "ä" * 4095}, ensure_ascii=True)),
    Input(headers=json.dumps({**JOURNEY, "a": "x" * 8191})),
    Input(headers=json.dumps({**JOURNEY, **{f"h{n}": "" for n in range(64)}})),
    Input(headers=json.dumps({"gapless-journey": '"' * (2**20 - 15)})),
]

VERDICTS = (
    "select gapless_internal.flaw(m.channel, m.type, m.key, m.data, null, m.headers, m.ttl) as flaw"
    " from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::float8[]) with ordinality"
    " as m (channel, type, key, data, headers, ttl, ord) order by m.ord"
)


async def verdicts(connection: asyncpg.Connection, inputs: list[Input]) -> list[str | None]:
    """What is wrong with each, in SQL."""
    # A message is kept on one line: over HTTP a line break between values becomes a space.
    lines = [replace(i, data=one_line(i.data.encode()).decode()) for i in inputs]
    columns = zip(*map(astuple, lines), strict=True)
    return [row["flaw"] for row in await connection.fetch(VERDICTS, *map(list, columns))]


@pytest.mark.parametrize(("inputs", "good"), [(GOOD, True), (BAD, False)], ids=["good", "bad"])
async def test_both_agree_on_what_is_known(
    owner: asyncpg.Connection, inputs: list[Input], good: bool
) -> None:
    for given, flaw in zip(inputs, await verdicts(owner, inputs), strict=True):
        assert (flaw is None, accepted(given)) == (good, good), (flaw, astuple(given))


class Maker:
    """Makes texts that are almost always JSON and often on one side of a limit or the other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def input(self) -> Input:
        pick = self._random.random
        return Input(
            channel=self.text("ab.*>~:@-_9ä \n", 6) if pick() < 0.2 else "a.b",
            type=self.text("abc\x00\x1f\x7f\x9fä ", 4).replace("\x00", "") if pick() < 0.2 else "message",
            key=self.text("abc\x1f\x9fä ", self._random.choice([1, 255, 256])) if pick() < 0.3 else None,
            data=self.value(0),
            headers=self.headers() if pick() < 0.4 else None,
            ttl=self._random.choice([None, None, 1.0, 0.0, 1e9, 315360000.0]),
        )

    def text(self, alphabet: str, most: int) -> str:
        return "".join(self._random.choices(alphabet, k=self._random.randint(0, most)))

    def value(self, depth: int) -> str:
        make = self._random.choice
        if depth > 40 or self._random.random() < 0.3 + depth / 400:
            return make([self.number(), self.string(), make(["true", "null", "[]", "{}", "nul", "[1"])])
        inside = [self.value(depth + self._random.choice([1, 1, 9])) for _ in range(make([1, 1, 1, 2, 3]))]
        if self._random.random() < 0.5:
            return "[" + make([",", " , "]).join(inside) + "]"
        return "{" + ",".join(f"{self.name()}{make([':', ' : '])}{value}" for value in inside) + "}"

    def number(self) -> str:
        make = self._random.choice
        digits = "".join(self._random.choices("0123456789", k=make([1, 3, 19, 20, 21, 400])))
        digits = digits.lstrip("0") or "0"
        fraction = make(["", "", ".5", ".000", "." + "0" * 330 + "1"])
        exponent = make(
            ["", "", "e5", "E+30", "e-20", "e290", "e308", "e309", "e-300", "e-340", "e-999", "e9999"]
        )
        return make(["", "-"]) + digits + fraction + exponent

    def string(self) -> str:
        parts = [
            r"\u0000",
            r"\\u0000",
            r"\ud800",
            r"\ud83d\ude00",
            r"\udc00",
            "a",
            "ä",
            '\\"',
            "[",
            "{",
            "1e999",
        ]
        return (
            '"' + "".join(self._random.choices([*parts, *"abcdefgh" * 3], k=self._random.randint(0, 4))) + '"'
        )

    def name(self) -> str:
        return self._random.choice(['"a"', '"b"', '"c"', '"d"', '"e"', r'"\u0061"', self.string()])

    def headers(self) -> str:
        count = self._random.choice([0, 1, 2, 64, 65])
        names = [f"h{n}" for n in range(count)]
        if count and self._random.random() < 0.3:
            names[0] = self._random.choice(["", "h1", "a\x07", "ä"])
        size = self._random.choice([0, 1, 126, 127, 8200])
        values = [self.text("abcä\x80" if self._random.random() < 0.02 else "abcdef", size) for _ in names]
        body = ",".join(f"{json.dumps(n)}:{json.dumps(v)}" for n, v in zip(names, values, strict=True))
        return "{" + body + "}"


@pytest.mark.parametrize("seed", range(4))
async def test_both_agree_on_whatever_comes(owner: asyncpg.Connection, seed: int) -> None:
    maker = Maker(seed)
    inputs = [maker.input() for _ in range(1500)]
    good = 0
    for given, flaw in zip(inputs, await verdicts(owner, inputs), strict=True):
        assert (flaw is None) == accepted(given), (flaw, astuple(given))
        good += flaw is None
    assert 100 < good < 1400, "both kinds come"


@pytest.mark.parametrize(
    "call",
    [
        "('a', ('[' || repeat('[', 33) || repeat(']', 33) || ']')::jsonb)",
        "('a', '1e100000')",
        "('a', '1', headers => '{\"\": \"x\"}')",
        r"""('a', '1', headers => '{"a": "\u0007"}')""",
        "('a', '1', headers => '[]')",
        "('a', null)",
        "('a', '1', type => null)",
        "('a', '1', type => '')",
        "('a', '1', ttl => 'NaN')",
        "('', '1')",
        "(null, '1')",
    ],
)
async def test_sql_publishes_what_http_would(owner: asyncpg.Connection, call: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await owner.execute(f"select gapless.publish{call}")
    assert await rows(owner) == []
    await owner.execute("select gapless.publish('a', '{\"n\": 1}', headers => '{\"a\": \"b\"}', ttl => 9)")
    await check_log(owner)


async def test_sql_makes_channels_where_the_service_does(owner: asyncpg.Connection) -> None:
    await owner.execute("select gapless.publish('there', '1')")
    await owner.execute("select gapless.set_auto_create(false)")
    await owner.execute("select gapless.publish('there', '2')")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="new does not exist"):
        await owner.execute("select gapless.publish('new', '3')")
    await owner.execute("select gapless.set_auto_create(true)")
    await owner.execute("select gapless.publish('new', '4')")
    assert [r["data"] for r in await rows(owner)] == ["1", "2", "4"]
