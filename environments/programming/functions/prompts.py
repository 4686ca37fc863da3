"""Prompts of the writers of a helper and of the main function, and feedback.

An agent sees its own replies with the feedback on them.
"""

from collections.abc import Sequence
import dataclasses

from environments import env_api
from environments import text as text_lib
from environments.programming import checks
from environments.programming import problems
from environments.programming.functions import source

# Maximum bytes of a reply, and of an assert or its error, in a prompt.
SHOWN_REPLY, SHOWN_TEST = 3000, 300
SHOWN_TESTS = 10


_EXAMPLE = '''\
def longest_word(words: list):
    """Return the longest word of a list, or None if it is empty.
    >>> longest_word(['to', 'be', 'not'])
    'not'
    """
'''
# Role -> its answer to the example. The models copy its form: a helper that
# solves the problem and a caller that treats a special case fit any problem.
_ANSWERS = {
    'aux': '''\
def aux(words):
    longest = words[0]
    for word in words:
        if len(word) > len(longest):
            longest = word
    return longest''',
    'main': '''\
def longest_word(words):
    if not words:
        return None
    result = aux(words)
    return result''',
    'solo': '''\
def longest_word(words):
    if not words:
        return None
    return max(words, key=len)''',
}


@dataclasses.dataclass(frozen=True)
class Exchange:
  """A finished turn of a role: its shortened reply without thinking."""

  role: str
  reply: str
  feedback: str


def messages(
    role: str, team: str, problem: problems.Problem,
    exchanges: Sequence[Exchange], aux: str | None,
    example: bool = False) -> list[env_api.Message]:
  """Builds the prompt of a role; `aux` is shown to main in a pipeline.

  With `example`, a solved problem precedes the first message.
  """
  def ask(statement, name):
    request = {
        'aux': 'Write the helper `aux`.',
        'main': f'Write `{name}`. Use the helper `aux`.',
        'solo': f'Write `{name}`.'}[role]
    text = f'Problem:\n{statement}' + (f'\n{request}' if example else '')
    return {'role': 'user', 'content': text}

  found = [
      {'role': 'system', 'content': _system(role, team, problem.entry_point)}]
  if example:
    found += [
        ask(_EXAMPLE, 'longest_word'),
        {'role': 'assistant', 'content': _ANSWERS[role]}]
  found.append(ask(problem.statement, problem.entry_point))
  for exchange in exchanges:
    if exchange.role == role:
      found += [
          {'role': 'assistant', 'content': exchange.reply},
          {'role': 'user', 'content': exchange.feedback}]
  if aux is not None:
    found[-1]['content'] += '\n\nThe function aux:\n' + (
        text_lib.shorten(aux, SHOWN_REPLY) or '(none)')
  return found


def _system(role: str, team: str, name: str) -> str:
  code = (
      'Answer with the code of the function alone: no explanation, no tests, '
      'no markdown.')
  if role == 'aux':
    return (
        'Two programmers solve a problem. Another one writes the function '
        f'{name}. Write a function named aux that helps to solve the problem '
        f'and returns a value that {name} can use. {code}')
  if role == 'main':
    signature = (
        'You are shown it.' if team == 'pipeline'
        else 'You do not know its parameters for sure.')
    return (
        'Two programmers solve a problem. Another one writes a helper, the '
        f'function aux(...). {signature} Write the function {name}. It may '
        'call aux and bind its value to a variable; do not define aux again. '
        f'{code}')
  return f'Solve a problem: write the function {name}. {code}'


def discussion(name: str, other: str, function: str) -> str:
  """Asks the author of `name` for a revision that fits the other `function`."""
  shown = text_lib.shorten(function, SHOWN_REPLY) or '(none)'
  return (
      f'The function {other} of the other programmer:\n{shown}\n\nRevise your '
      f'function {name} so that the two work together. Answer with its code '
      'alone.')


def feedback(
    role: str, name: str, aux: str, main: str, program: str,
    verdict: checks.Verdict | None, num_tests: int) -> str:
  """Describes definitions, syntax and failing asserts, and how main uses aux.

  `name` is that of the main function, whose source is `main`. The `program` is
  aux and main after the imports. At most `num_tests` asserts are reported, or
  all if it is 0.
  """
  lines = [] if role == 'solo' else [_describe_definition(source.AUX, aux)]
  lines.append(_describe_definition(name, main))
  lines.append(f'Syntax: {source.syntax_error(program) or "right"}.')
  if verdict is not None and verdict.asserts:
    tests = list(zip(verdict.asserts, verdict.errors))[:num_tests or None]
    failing = [(test, error) for test, error in tests if error]
    lines.append(f'Tests: {len(tests) - len(failing)} of {len(tests)} hold.')
    lines += [
        f'  {text_lib.shorten(test, SHOWN_TEST)}: '
        f'{text_lib.shorten(error, SHOWN_TEST)}'
        for test, error in failing[:SHOWN_TESTS]]
  if role == 'main' and main:
    lines.append(_describe_use_of_aux(main))
  function = source.AUX if role == 'aux' else name
  lines.append(
      f'Revise your function {function}. Answer with its code alone.')
  return '\n'.join(lines)


def _describe_definition(name: str, function: str) -> str:
  if not function:
    return f'{name}: not found.'
  if not source.has_return(function):
    return f'{name}: found, without a return statement.'
  return f'{name}: found.'


def _describe_use_of_aux(main: str) -> str:
  if not source.calls_aux(main):
    return 'aux is not called.'
  if source.ignores_aux(main):
    return 'aux is called, but its value is ignored.'
  if source.is_wrapper(main):
    return 'aux is called, but nothing else is done.'
  return 'aux is called and used.'
