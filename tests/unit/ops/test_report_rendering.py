from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from ops.inspect.report.rendering import brief, environment, printable
from tests.unit.ops.report_runs import Parsed

HOSTILE = '</td><script>alert("x")</script>&amp;\' onload=alert(1)'


def rendered(source: str, **values: object) -> str:
    return environment().from_string(source).render(values)


@given(st.text())
def test_text_stays_text_in_content_and_in_attributes(text: str) -> None:
    parsed = Parsed(rendered('<p title="{{ text }}">{{ text }}</p>', text=text))
    assert [(tag, list(attrs)) for tag, attrs in parsed.tags] == [("p", ["title"])]
    assert "".join(parsed.texts) == printable(text)
    assert parsed.tags[0][1]["title"] == printable(text)


def test_only_markup_is_not_escaped() -> None:
    assert rendered("{% for x in values %}{{ x }}{% endfor %}", values=[Markup("<b>"), "<b>", 3]) == (
        "<b>&lt;b&gt;3"
    )


def test_characters_that_change_direction_or_end_text_are_replaced() -> None:
    assert printable("a\u202eb\x00c\ud800d\ne") == "a b c d e"


def test_a_table_aligns_numbers_and_escapes_every_cell() -> None:
    source = '{% from "parts.html" import table %}{{ table(headings, rows, (1,), code=0, swatches=7) }}'
    made = rendered(source, headings=["name", HOSTILE], rows=[[HOSTILE, 3]])
    tags = [tag for tag, _ in Parsed(made).tags]
    assert "script" not in tags
    assert tags.count("th") == tags.count("td") == 2
    assert tags.count("code") == tags.count("span") == 1
    assert '<td class="number">3</td>' in made


def test_long_text_is_cut_with_an_ellipsis() -> None:
    assert brief("one two three", 8) == "one two…"
    assert brief("one\n two", 8) == "one two"
