from hypothesis import given
from hypothesis import strategies as st

from ops.inspect.report.markup import Markup, brief, element, join, printable, table
from tests.unit.ops.report_runs import Parsed

HOSTILE = '</td><script>alert("x")</script>&amp;\' onload=alert(1)'


@given(st.text())
def test_text_stays_text_in_content_and_in_attributes(text: str) -> None:
    parsed = Parsed(element("p", text, title=text))
    assert [(tag, list(attrs)) for tag, attrs in parsed.tags] == [("p", ["title"])]
    assert "".join(parsed.texts) == printable(text)
    assert parsed.tags[0][1]["title"] == printable(text)


def test_only_markup_is_taken_as_it_is() -> None:
    assert join([Markup("<b>"), "<b>", 3, None, ["&"]]) == "<b>&lt;b&gt;3&amp;"


def test_what_turns_or_ends_text_is_taken_out() -> None:
    assert printable("a\u202eb\x00c\ud800d\ne") == "a b c d e"


def test_an_attribute_of_none_is_left_out_and_names_become_those_of_html() -> None:
    assert element("img", class_="x", aria_label="y", alt=None) == '<img class="x" aria-label="y">'


def test_a_table_aligns_numbers_and_escapes_every_cell() -> None:
    made = table(["name", HOSTILE], [[HOSTILE, 3]], numbers=(1,))
    tags = [tag for tag, _ in Parsed(made).tags]
    assert "script" not in tags
    assert tags.count("th") == tags.count("td") == 2
    assert '<td class="number">3</td>' in made


def test_long_text_is_cut_with_a_mark() -> None:
    assert brief("one two three", 8) == "one two…"
    assert brief("one\n two", 8) == "one two"
