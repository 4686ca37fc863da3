"""The grammars of `environments.text`, on texts as models write them."""

import time

import pytest

from environments import text

DEEP = 100_000  # Nesting that overflows the stack of any parser.


@pytest.mark.parametrize('given, program', [
    ('I search.\n```python\nprint(1)\n```\nDone.', 'print(1)\n'),
    ('```python\n```', ''),
    # The last closed block wins, and other languages are ignored.
    ('```\na\n```\n```python\nb\n```\n```text\nc\n```', 'b\n'),
    ('```python\na\n```\nor\n```python\nb\n```', 'b\n'),
    # Fences with blanks, texts with CRLF, and fences inside a line.
    ('```python \t\r\na\r\nb\r\n``` \t\r\n', 'a\r\nb\r\n'),
    ('```python\nx = "```"\n ```\n```', 'x = "```"\n ```\n'),
    ('```python\n# ß→😀\u2028\x0c\n```', '# ß→😀\u2028\x0c\n'),
    # Malformed blocks.
    *((malformed, None) for malformed in (
        '', '```python\nprint(1)\n', '```python\nprint(1)```',
        '```python\nprint(1)\n ```', '```python\nprint(1)\n````',
        '```python print(1)\n```', '```\nprint(1)\n```',
        '```Python\nprint(1)\n```', ' ```python\nprint(1)\n```',
        '```python\nprint(1)\n```text\n',
        '```python\nprint("</think>")\n```'))])
def test_last_program(given, program):
  assert text.last_program(given) == program


def _call(name, **arguments):
  return {
      'type': 'function', 'function': {'name': name, 'arguments': arguments}}


@pytest.mark.parametrize('given, calls', [
    ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
     [_call('add', a=1)]),
    ('<tool_call>no</tool_call></think>I add.<tool_call>{"arguments": {}, '
     '"name": "f"}</tool_call>\n<tool_call>'
     '{"name": "g", "arguments": {"x": "<b>"}}</tool_call> Done.',
     [_call('f'), _call('g', x='<b>')]),
    *((malformed, None) for malformed in (
        '', '<tool_call>{"name": "f", "arguments": {}}',
        '<tool_call></tool_call>', '<tool_call>[]</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "id": 3}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>'))])
def test_tool_calls(given, calls):
  assert text.tool_calls(given) == calls


@pytest.mark.parametrize('given, answer', [
    ('#### ["U", "R"]', ['U', 'R']),
    ('####\t[ ]  ', []),
    ('#### {"a": [null, true, [-1.5e3]]}', {'a': [None, True, [-1500.0]]}),
    ('#### false', False),
    # JSON text may hold line separators of other standards.
    ('#### ["a\u2028b\x85c"]', ['a\u2028b\x85c']),
    ('I try.\r\n#### ["U"]\r\nThat is all.\r\n', ['U']),
    # Headings and malformed answers are skipped; the last answer wins.
    ('#### Step 1\n#### ["U"]\n#### Done\n####', ['U']),
    ('#### ["U"]\n##### ["D"]\n### ["D"]\n #### ["D"]', ['U']),
    ('#### ["U"]\n#### 7\n#### null', 7),
    *((malformed, None) for malformed in (
        '', '["U"]', '#### ["U"] and so on', "#### ['U']", '####\n["U"]',
        'text #### ["U"]', 'text\r#### ["U"]', 'text\x85#### ["U"]',
        '#### \u00a0["U"]', '#### [1, Infinity]', '#### 1e999', '#### 01',
        '#### __import__("os").getpid()')),
    *(pytest.param(f'#### {value}', None, id=value[:6]) for value in (
        '1' * 5000, '[' * DEEP, '[' * DEEP + ']' * DEEP,
        '{"a":' * DEEP + '1' + '}' * DEEP))])
def test_last_answer(given, answer):
  found = text.last_answer(given)
  # True == 1, so types are compared too.
  assert (type(found), found) == (type(answer), answer)


DRAFT, FINAL = '```python\na\n```\n#### 1\n', '```python\nb\n```\n#### 2'


@pytest.mark.parametrize('given, has_reply', [
    (f'<think>\n{DRAFT}</think>\n\n{FINAL}', True),
    # Opened in the prompt; two blocks; nested tags.
    (f'{DRAFT}</think>{FINAL}', True),
    (f'<think>\n{DRAFT}</think>\n{DRAFT}<think>\nhm\n</think>\n{FINAL}', True),
    (f'<think>\n<think>\n</think>\n{DRAFT}</think>\n{FINAL}', True),
    # Not closed, or nothing after the tag.
    (f'<think>\nhm\n</think>\n{DRAFT}<think>\n{DRAFT}', False),
    (f'{DRAFT}print("<think>")', False),  # A tag in a text is a tag.
    (f'{DRAFT}<think>\n{DRAFT}</think>', False)])
def test_thinking_is_ignored(given, has_reply):
  assert text.last_program(given) == ('b\n' if has_reply else None)
  assert text.last_answer(given) == (2 if has_reply else None)
  assert text.reply(given).endswith(FINAL if has_reply else '')


@pytest.mark.parametrize('given, value', [
    ('["U"]\r\n \t\n', ['U']),
    ('searching\nlength 2\n["U", "D"]\n', ['U', 'D']),
    ('<think>\n["U"]', ['U']),  # A program does not think.
    ('["U"]\ndone', None), ('path ["U"]', None), ('[\n"U"\n]', None),
    ('\n\n', None)])
def test_last_json_line(given, value):
  assert text.last_json_line(given) == value


@pytest.mark.parametrize('given, box', [
    (r'So $\boxed{\frac{1}{2}}$.', r'\frac{1}{2}'),
    (r'\boxed{1} or \boxed{2}', '2'), (r'\boxed{}', ''),
    (r'\boxed{1} and \boxed{2', '1'), (r'\boxed{\boxed{3}}', '3'),
    (r'\boxed{\{1,2\}}', r'\{1,2\}'), (r'\boxed{\{1}', r'\{1'),
    (r'} { \boxed{1} }', '1'), (r'<think>\boxed{1}</think> \boxed{2}', '2'),
    ('\\boxed\n {\\frac {1}\n {2}}', '\\frac {1}\n {2}'),
    (r'\boxed 1', None), (r'\boxed{1', None), (r'\\boxed{1}', None)])
def test_last_boxed(given, box):
  assert text.last_boxed(given) == box


@pytest.mark.parametrize('part', [
    '```python\n', '```python\nx\n', '#### [\n', '#', '\n', '<think>',
    '</think>', '\\boxed{', '{', '}'])
def test_long_texts_are_parsed_in_linear_time(part):
  given = '```python\n' + part * (200_000 // len(part))
  start = time.process_time()
  for parse in (
      text.last_program, text.last_answer, text.last_json_line,
      text.last_boxed):
    assert parse(given) is None
  assert time.process_time() - start < 2.0


@pytest.mark.parametrize('given, limit, shortened', [
    ('0123456789', 10, '0123456789'),
    ('0123456789x', 10, '01234 [... 1 characters cut ...] 6789x'),
    # Characters of three bytes are kept whole.
    ('€' * 3, 9, '€€€'), ('€' * 4, 9, '€ [... 2 characters cut ...] €')])
def test_shorten(given, limit, shortened):
  assert text.shorten(given, limit) == shortened
