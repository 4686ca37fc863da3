"""The grammar of `environments.text`, on texts as models write them."""

import time

import pytest

from environments import text

DEEP = 100_000  # Nesting that overflows the stack of any parser.


@pytest.mark.parametrize('given, program', [
    ('```python\nprint(1)\n```', 'print(1)\n'),
    ('I search.\n```python\nprint(1)\n```\nDone.', 'print(1)\n'),
    ('```python\n```', ''),
    ('```python\n\n```', '\n'),
    ('```python\na\n  b\n\nc\n```\n', 'a\n  b\n\nc\n'),
    # The last closed block wins.
    ('```python\na\n```\nor\n```python\nb\n```', 'b\n'),
    ('```python\na\n```\n```python\nb', 'a\n'),
    ('```python\na\n```python\nb\n```', 'b\n'),
    # Blocks of other languages are ignored.
    ('```\na\n```\n```python\nb\n```\n```text\nc\n```', 'b\n'),
    ('```python\na\n```\n```\n', 'a\n'),
    # Fences with blanks, and texts with CRLF.
    ('```python \t\na\n``` \t\n', 'a\n'),
    ('```python\r\na\r\nb\r\n```\r\n', 'a\r\nb\r\n'),
    # Fences inside a line are text.
    ('```python\nx = "```"\n ```\n```', 'x = "```"\n ```\n'),
    ('```python\n``\n```', '``\n'),
    ('```python\n# ß→😀\u2028\x0c\n```', '# ß→😀\u2028\x0c\n'),
])
def test_last_program(given, program):
  assert text.last_program(given) == program


@pytest.mark.parametrize('given', [
    '', 'print(1)', '```python', '```python\n', '```python\nprint(1)\n',
    '```python\nprint(1)```', '```python\nprint(1)\n ```',
    '```python\nprint(1)\n````', '```python print(1)\n```',
    '```\nprint(1)\n```', '```py\nprint(1)\n```', '```Python\nprint(1)\n```',
    '```python3\nprint(1)\n```', ' ```python\nprint(1)\n```',
    'Here: ```python\nprint(1)\n```', '~~~python\nprint(1)\n~~~',
    '```python\nprint(1)\n```text\n'])
def test_malformed_program_is_none(given):
  assert text.last_program(given) is None


@pytest.mark.parametrize('given, answer', [
    ('#### ["U", "R"]', ['U', 'R']),
    ('####["U"]', ['U']),
    ('####\t[ ]  ', []),
    ('#### [[1, 2], [3, [4]]]', [[1, 2], [3, [4]]]),
    ('#### {"a": [null, true]}', {'a': [None, True]}),
    ('#### -1.5e3', -1500.0),
    ('#### 0', 0),
    ('#### false', False),
    ('#### ""', ''),
    ('#### "naïve ≤ \\u00df 😀"', 'naïve ≤ ß 😀'),
    # JSON text may hold line separators of other standards.
    ('#### ["a\u2028b\x85c"]', ['a\u2028b\x85c']),
    ('I try.\n\n#### ["U"]\nThat is all.\n', ['U']),
    ('I try.\r\n#### ["U"]\r\nThat is all.\r\n', ['U']),
    # Headings before and after.
    ('#### Step 1\n#### ["U"]', ['U']),
    ('#### ["U"]\n#### Done', ['U']),
    ('#### ["U"]\n####', ['U']),
    ('#### ["U"]\n##### ["D"]', ['U']),
    ('#### ["U"]\n### ["D"]', ['U']),
    ('#### ["U"]\n #### ["D"]', ['U']),
    ('#### ["U"]\n#### ["D"', ['U']),
    ('#### ["U"]\n#### null', ['U']),
    # The last answer wins.
    ('#### ["U"]\n#### ["D"]', ['D']),
    ('#### ["U"]\n#### 7', 7),
    ('```\n#### ["U"]\n```', ['U']),
])
def test_last_answer(given, answer):
  found = text.last_answer(given)
  # True == 1, so types are compared too.
  assert (type(found), found) == (type(answer), answer)


@pytest.mark.parametrize('given', [
    '', '["U"]', '####', '#### null', '#### ["U"] and so on',
    '#### I go ["U"]', '#### ["U"', '#### "U"]', '#### ["U",]',
    '#### ["U"] ["D"]', "#### ['U']", '#### ("U",)', '#### UDLR',
    '#### `["U"]`', '####\n["U"]', '#### [\n"U"]', 'text #### ["U"]',
    'text\r#### ["U"]', 'text\x85#### ["U"]', '#### \u00a0["U"]',
    '#### \ufeff["U"]', '#### ["a\tb"]', '#### None', '#### NaN',
    '#### [1, Infinity]', '#### -Infinity', '#### 1e999', '#### [-1e999]',
    '#### 01', '#### __import__("os").getpid()',
    *(pytest.param(f'#### {value}', id=value[:6]) for value in (
        '1' * 5000, '[' * DEEP, '[' * DEEP + ']' * DEEP,
        '{"a":' * DEEP + '1' + '}' * DEEP))])
def test_malformed_answer_is_none(given):
  assert text.last_answer(given) is None


DRAFT, FINAL = '```python\na\n```\n#### 1\n', '```python\nb\n```\n#### 2'


@pytest.mark.parametrize('given, counts', [
    (FINAL, True),
    (f'<think>\n{DRAFT}</think>\n\n{FINAL}', True),
    (f'<think>\n\n</think>\n\n{FINAL}', True),
    # Opened in the prompt; on the line of the tag; two blocks; nested tags.
    (f'{DRAFT}</think>\n{FINAL}', True),
    (f'</think>{FINAL}', True),
    (f'<think>\n{DRAFT}</think>\n{DRAFT}<think>\nhm\n</think>\n{FINAL}', True),
    (f'<think>\n<think>\nhm\n</think>\n{FINAL}', True),
    (f'<think>\n<think>\n</think>\n{DRAFT}</think>\n{FINAL}', True),
    (f'< think>\n</ think>\n<THINK>\n{FINAL}', True),  # Not tags.
    # Not closed.
    (f'<think>\n{DRAFT}', False),
    (f'{DRAFT}<think>\nhm', False),
    (f'<think>\nhm\n</think>\n{DRAFT}<think>\n{DRAFT}', False),
    # Nothing after the tag.
    (f'{DRAFT}<think>\n{DRAFT}</think>', False),
    (f'{DRAFT}</think>', False)])
def test_thinking_is_ignored(given, counts):
  assert text.last_program(given) == ('b\n' if counts else None)
  assert text.last_answer(given) == (2 if counts else None)


@pytest.mark.parametrize('given, reply', [
    ('It is.', 'It is.'), ('hm\n</think>\n\nIt is.', '\n\nIt is.'),
    ('<think>\n</think>It</think> is.', ' is.'), ('It <think>is.', ''),
    ('', '')])
def test_reply(given, reply):
  assert text.reply(given) == reply


def test_tags_in_a_program_are_tags():
  for thinking in ('', '<think>\nhm\n</think>\n'):
    given = thinking + '```python\nprint("{}")\n```\n#### 2'
    assert text.last_program(given.format('<think>')) is None
    assert text.last_answer(given.format('<think>')) is None
    assert text.last_program(given.format('</think>')) is None
    assert text.last_answer(given.format('</think>')) == 2


@pytest.mark.parametrize('given, value', [
    ('["U"]', ['U']),
    ('["U"]\n', ['U']),
    ('["U"]\r\n \t\n', ['U']),
    ('searching\nlength 2\n["U", "D"]\n', ['U', 'D']),
    ('<think>\n["U"]', ['U']),  # A program does not think.
    ('["U"]\nnull', None),
    ('["U"]\ndone', None),
    ('path ["U"]', None),
    ("['U']", None),
    ('[\n"U"\n]', None),
    ('NaN', None),
    ('', None),
    ('\n\n', None),
])
def test_last_json_line(given, value):
  assert text.last_json_line(given) == value


@pytest.mark.parametrize('part', [
    '```python\n', '```python\nx\n', 'x\n', '#### [\n', '#', '\n', '<think>',
    '</think>'])
def test_long_texts_are_parsed_in_linear_time(part):
  given = '```python\n' + part * (200_000 // len(part))
  start = time.process_time()
  assert text.last_program(given) is None
  assert text.last_answer(given) is None
  assert text.last_json_line(given) is None
  assert time.process_time() - start < 1.0


def test_shorten():
  assert text.shorten('0123456789', 10) == '0123456789'
  assert text.shorten('0123456789x', 10) == (
      '01234 [... 1 characters cut ...] 6789x')
  assert text.shorten('a' * 300 + 'b' * 300, 100) == (
      'a' * 50 + ' [... 500 characters cut ...] ' + 'b' * 50)
  # Characters of three bytes are kept whole.
  assert text.shorten('€' * 3, 9) == '€€€'
  assert text.shorten('€' * 4, 9) == '€ [... 2 characters cut ...] €'


@pytest.mark.parametrize('given, box', [
    (r'\boxed{204}', '204'), (r'So $\boxed{\frac{1}{2}}$.', r'\frac{1}{2}'),
    (r'\boxed{1} or \boxed{2}', '2'), (r'\boxed{}', ''),
    (r'\boxed{1} and \boxed{2', '1'), (r'\boxed{\boxed{3}}', '3'),
    (r'\boxed{\{1,2\}}', r'\{1,2\}'), (r'\boxed{\{1}', r'\{1'),
    ('\\boxed{a\nb}', 'a\nb'), (r'} \boxed{1} }', '1'),
    (r'\boxed 1', None), (r'\boxed{1', None), ('boxed{1}', None),
    (r'\\boxed{1}', None), ('', None), (r'{ { \boxed{1}', '1'),
    (r'<think>\boxed{1}</think> \boxed{2}', '2'),
    (r'<think>\boxed{1}</think>', None), (r'\boxed{1} <think>', None)])
def test_last_boxed(given, box):
  assert text.last_boxed(given) == box


@pytest.mark.parametrize('given', [
    r'\boxed{' * DEEP, '{' * DEEP + '}' * DEEP, '}' * DEEP])
def test_boxes_are_parsed_in_linear_time(given):
  started = time.monotonic()
  assert text.last_boxed(given) is None
  assert time.monotonic() - started < 2


@pytest.mark.parametrize('written, blocks', [
    ('```input\n1 2\n```\n```output\n3\n```',
     [('input', '1 2\n'), ('output', '3\n')]),
    ('```input \r\n```\t', [('input', '')]),
    ('```a\n```b\n```', [('b', '')]),
    ('```\n1\n```', []),
    ('```input\n1', []),
    ('<think>```a\n```</think>\n```b\n```', [('b', '')]),
    (' ```a\n```', []),
    ('a ```a\n```', []),
])
def test_blocks_with_names(written, blocks):
  assert text.blocks_of(written) == blocks
