"""Equal and different answers: pairs worked out by hand."""

import pytest

from environments.math_problems import equivalence
from environments.math_problems import notation

# Gold answer, equal answers, different answers.
PAIRS = (
    # Spellings of integers.
    ('204', ['204', '$204$', '204.', '204.0', '+204', ' 204 ', '0204'],
     ['205', '-204', '20', '2040', '204.001', '1/204', '2,04']),
    ('-8', ['-8', '\N{MINUS SIGN}8', '- 8'], ['8', '-9']),
    ('025', ['25', '25.0'], ['0.25']),
    # The tolerance of 1e-6 would include neighbours of a large integer.
    ('10112369', ['10,112,369', '10112369.0'], ['10112370', '10112370.0']),
    # A thousands separator, or a list.
    ('1000', ['1,000', '1{,}000', '1 000', r'1\,000', r'1\,000.'],
     ['1,0000', '1,00', '100']),
    ('2500,7500', ['7500, 2500', r'\{2500,7500\}', '2500 and 7500'],
     ['2500', '2500,7501', '2500,7500,1']),
    # Fractions and decimals.
    (r'$\frac{1}{2}$', ['0.5', '1/2', r'\dfrac12', r'\tfrac{2}{4}', '.5',
                        '0.50', r'2^{-1}'], ['1/3', '0.51', '2', r'-\frac12']),
    (r'-\frac{17}{30}', [r'\frac{-17}{30}', '-17/30', r'-\dfrac{17}{30}',
                         r'\frac{17}{-30}'], [r'\frac{17}{30}', '-30/17']),
    ('$1/3$', ['0.333333333', r'\frac{1}{3}'], ['0.33', '0.3334']),
    ('4.25', [r'\frac{17}{4}', r'4\frac{1}{4}', '4.2500'], ['4.3', '4.2']),
    # Percentages.
    ('62.5%', ['62.5', r'62.5\%', '0.625', r'\frac{5}{8}', '62.5 percent'],
     ['6.25', '0.0625', r'63\%']),
    ('8', ['8'], [r'8\%', '0.08']),
    ('0.08', [r'8\%'], ['8']),
    ('0.002', ['2e-3', '2/1000'], ['2e-4', '1/0']),
    # Units.
    ('45', [r'45\text{ minutes}', r'45^{\circ}', '45 km', r'45\ \mathrm{cm}^2',
            '$45', r'\$45'], ['54', r'45\sqrt{2}', '45m']),
    (r'44^{\circ}', ['44', r'44^\circ', '44 degrees'],
     [r'44\text{ km}', '46^{\\circ}']),
    (r'5\text{ cm}', ['5', '5 cm', r'5 \text{centimeters}'],
     [r'5\text{ km}', r'5\text{ cm}^2']),
    ('$6m$', ['6m', r'6 \cdot m', 'm6'], ['6', '6n', '12m']),
    # Roots, powers, logarithms, pi.
    (r'2\sqrt{10}', [r'\sqrt{40}', r'2 \cdot \sqrt{10}', r'\sqrt{10}*2'],
     [r'\sqrt{20}', r'10\sqrt{2}', r'2\sqrt{11}']),
    ('$2^{1009}$', ['2^{1009}', r'2 \cdot 2^{1008}'], ['2^{1010}', '1009^2']),
    (r'\frac{3 \pi}{4}', [r'0.75\pi', r'\frac34\pi'], [r'\frac{\pi}{4}', '2']),
    (r'\frac{\log 2}{\log 2-\log 3}', [r'\frac{\log 2}{\log\frac{2}{3}}'],
     [r'\frac{\log 3}{\log 2-\log 3}']),
    (r'\frac{15-8 \sqrt{3}}{33}', [r'\frac{5}{11}-\frac{8\sqrt{3}}{33}'],
     [r'\frac{15+8 \sqrt{3}}{33}']),
    # Formulas.
    (r'\frac{n(n+1)}{2}', [r'\frac{n^2+n}{2}', r'\binom{n+1}{2}',
                           r'\frac12 n(1+n)'],
     [r'\frac{n(n-1)}{2}', r'\frac{m(m+1)}{2}', '3']),
    (r'$2RC+R+C$', ['R+C+2CR'], ['2RC+R-C']),
    (r'$f(x)=2 x$', ['f(x)=2x', '2x', 'f(x) = x+x', 'f(n)=2n'],
     ['f(x)=3x', 'g(x)=2x', '2', 'f(x)=2n']),
    ('$k=2 n-1$', ['2n-1', 'k=2n-1'], ['2n+1', 'm=2n-1']),
    (r'm_{\max }=n^{2}-n-1', ['n^2-n-1'], ['n^2-n']),
    (r'$f(x)=a x+b$, where $b$ is an arbitrary integer', ['f(x)=ax+b', 'ax+b'],
     ['f(x)=ax-b', 'f(x)=a+b']),
    (r'k \geqslant 2', [r'k \ge 2', r'2 \leq k'], ['k > 2', r'k \le 2', '2']),
    ('x+y=5', ['y+x=5'], ['5']),  # math-verify alone accepts 5.
    ('5', ['x=5'], ['x=6']),
    # Capital and small letters are different variables if both occur.
    ('$N=n$', ['n', 'N=n', 'n=N'], ['N=N', 'N']),
    (r'\frac{R-r}{R}', [r'1-\frac{r}{R}'], ['0', r'\frac{r-R}{R}', '1-R/r']),
    ('2R', ['2R', '2r'], ['r+R']),
    (r'S=\frac{s}{2}', ['s/2', 'S=0.5s'], ['S=S/2']),
    ('0', [r'r-r'], [r'R-r', r'\sin(a)-\sin(A)']),
    # Tuples keep their order, and intervals their ends.
    ('(2,4)', ['(2,4)', r'\left(2, 4\right)', r'(2, \frac{8}{2})'],
     ['(4,2)', '(2,5)', '[2,4)', '(2,4,0)', '(2)']),
    (r'[\frac{1}{2}, 8]', [r'[0.5,8]', r'\left[\frac12,8\right]'],
     ['(0.5,8]', '[0.5,8)', '[8,0.5]', '[0.5,9]']),
    (r'(-\infty, 0) \cup\{1\}', [r'\{1\} \cup (-\infty,0)',
                                 r'(-\infty, 0)\cup \{1\}.'],
     [r'(-\infty,0]\cup\{1\}', r'(-\infty, 0)', r'(-\infty,0) \cup\{2\}']),
    (r'(-\sqrt{11},-2)\cup (\sqrt{11},9)',
     [r'(\sqrt{11},9) \cup (-\sqrt{11},-2)'],
     [r'(-\sqrt{11},-2)\cup (\sqrt{11},8)']),
    (r'\bigl(2, 3\bigr)', ['(2,3)', r'\Big(2,3\Big)'], ['(3,2)']),
    # Several answers, in any order.
    ('$69$,$84$', ['84, 69', r'\{69,84\}', '69 and 84',
                   r'69 \text{ or } 84'], ['69', '69,85', '69,84,1']),
    ('16,3,1,1', ['1,16,1,3'], ['16,3,1', '16,3,1,2']),
    ('1', ['1.0'], ['1,1', r'\{1,1\}', '1, 2']),
    ('$2,-2$', [r'\pm 2', r'-2, 2'], ['2', '2,2', '-2,-2']),
    ('$(1,1), (3,2)$', ['(3,2),(1,1)', '(1, 1) and (3, 2)'],
     ['(1,1)', '(1,1),(2,3)', '(1,1),(3,3)']),
    ('$a=2$, $a=-6-4 \\sqrt{2}$', [r'-6-4\sqrt2, 2', r'a=-6-4\sqrt{2}, a=2'],
     ['2', r'2, -6+4\sqrt{2}']),
    ('$221,$8$', ['8,221', r'\{221,8\}'], ['221', '221,9']),
    # Words.
    (r'\text{Yes}', ['yes', r'\textbf{Yes}'], ['no', 'sey', '1']),
)


@pytest.mark.parametrize('gold, equal, different', PAIRS)
def test_equal_answers_are_accepted_and_others_refused(gold, equal, different):
  assert equivalence.equivalent(gold, gold)
  assert [x for x in equal if not equivalence.equivalent(x, gold)] == []
  assert [x for x in different if equivalence.equivalent(x, gold)] == []


@pytest.mark.parametrize('text', ['', '$$', '.', ' ', r'\ '])
def test_empty_answers_equal_nothing(text):
  assert not equivalence.equivalent(text, text)
  assert not equivalence.equivalent(text, '0')
  assert not equivalence.equivalent('0', text)


@pytest.mark.parametrize('text, is_number', [
    ('42', True), ('-1/2', True), ('[1, 2]', True), ('(1, 2), (3, 4)', True),
    ('2e-3', True), ('5 km/h', True), ('', False), ('()', False),
    ('six', False), ('1, six', False), ('2x', False), ('1/0', False),
    ('the answer is 42', False)])
def test_is_number(text, is_number):
  assert notation.is_number(text) is is_number
