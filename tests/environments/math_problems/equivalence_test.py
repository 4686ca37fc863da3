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
    # Exact values are compared exactly, however small or large.
    (r'\frac{1}{2^{99}}', ['2^{-99}', r'\frac{2}{2^{100}}'],
     [r'\frac{1}{2^{98}}', '0', '2^{-98}', r'\frac{1}{2^{99}+1}']),
    (r'\frac{1}{2004!}', [], [r'\frac{1}{2006!}', '0']),
    ('1/20!', [r'\frac{1}{20!}'], ['1/19!']),
    ('10^{-18}', ['1e-18', '0.000000000000000001'],
     [r'2\cdot10^{-18}', '2e-18', '0']),
    (r'1-\frac{1}{2^{100}}', [], ['1', r'1-\frac{1}{2^{101}}']),
    (r'\sqrt{10^{40}+1}', [], ['10^{20}', r'\sqrt{10^{40}+2}']),
    (r'\ln(1+10^{-20})', [], ['0', '10^{-20}']),
    (r'(\frac{5}{6})^{200}', [], [r'(\frac{5}{6})^{201}']),
    (r'\sqrt{2}\cdot 10^{-18}', [], [r'\sqrt{3}\cdot 10^{-18}', '10^{-18}']),
    (r'e^{-100}', [], ['e^{-101}', '0']),
    (r'\sqrt{2}+\sqrt{3}', [r'\sqrt{5+2\sqrt{6}}', '3.146264', '3.14626437'],
     [r'\sqrt{5+2\sqrt{7}}', '3.1463']),
    (r'\frac{x}{2^{99}}', ['2^{-99}x'], [r'\frac{x}{2^{98}}']),
    (r'(\frac{1}{2^{99}}, 1)', [], [r'(\frac{1}{2^{98}}, 1)']),
    (r'\{2^{-99}\}\cup\{1\}', [r'\{2^{-99},1\}'], [r'\{2^{-98},1\}']),
    (r'[0,2^{-99}]', [], ['[0,2^{-98}]']),
    ('(0,2^{-99})', ['0<x<2^{-99}'], ['0<x<2^{-98}', '(0,2^{-98})']),
    ('x>2^{-99}', ['2^{-99}<x'], ['x>2^{-98}', 'x<2^{-99}']),
    ('0<x<2^{-99}', ['2^{-99}>x>0'], ['0<x<2^{-98}']),
    ('y=2^{-99}x', [], ['y=2^{-98}x']),
    (r'\begin{pmatrix}2^{-99}\\1\end{pmatrix}',
     [r'\begin{bmatrix}2^{-99}\\1\end{bmatrix}'],
     [r'\begin{pmatrix}2^{-98}\\1\end{pmatrix}']),
    # The tolerance of a decimal is relative.
    ('3e-8', ['3.0e-8', '0.00000003', r'3\cdot 10^{-8}'], ['2e-8', '0']),
    ('1.6e-19', [r'1.6\times10^{-19}'], ['0', '1.7e-19', r'1.6\cdot10^{-18}']),
    (r'6.02\times 10^{23}', ['6.02e23', '602' + 21 * '0'],
     ['6.03e23', r'6.02\times10^{22}', '6.02']),
    ('0.0001', ['1e-4'], ['0.0002', '0.00010001', '0']),
    (r'10^{-3}', ['0.001', '1/1000'], ['0.0010001', '10^{3}']),
    ('1/6', ['0.166667', '0.1666666667'], ['0.16667', '0.1666']),
    (r'\frac{1}{6084}', ['0.000164366'], ['0.000164', '0.00016437']),
    ('0', ['0.0', '-0'], ['1e-9', '0.0000001']),
    ('(3e-8,1)', [], ['(2e-8,1)']),
    ('x=3e-8', [], ['x=2e-8', '2e-8']),
    (r'0.00000003\pi', [], [r'0.00000002\pi']),
    (r'10^{-8}\sqrt{2}', ['0.0000000141421356', '1.41421e-8'],
     ['0.0000000141', '0.00000002']),
    (r'x>\frac13', ['x>0.33333333'], ['x>0.33']),
    ('0.0003%', [], ['0.0002%']),
    # Only a definition equals its right side.
    ('5', ['x=5', '5=x', '2+3=5', r'x=\frac{10}{2}=5', 'S=a+b=5', 'AB=5',
           r'\angle ABC=5', 'f(1)=5', 'P(X=2)=5', r'x_{\max}=5', "a'=5",
           r'\text{Answer}=5', '|AB|=5', r'S_{\triangle ABC}=5'],
     ['6=5', 'y+1=5', 'x+y=5', '2x=5', 'x=6=5', 'x^2=5', 'xy=5', '5=6',
      r'\sqrt{x}=5', 'x=5=6', '-x=5', 'x!=5', r'\frac{a}{b}=5', '0=5', 'x=y',
      '|x|=5', r'x\ne5', r'x\not=5', 'x>5', r'x\approx 6', '5=n+1', '8=5']),
    ('x=5', ['5', 'x=5', '5=x', '2x=10', 'x+1=6'],
     ['y=5', 'y+1=5', 'x+y=5', 'f(x)=5', 'x=6', '6=x', 'x>5', 'x=-5']),
    ('f(2)=5', ['5'], ['f(1)=5', 'g(2)=5', 'f(2)=4']),
    (r'\angle ABC=90', ['90'], [r'\angle CAB=90']),
    ('V=IR', ['I=V/R', 'IR'], ['V=I/R']),
    ('2x-y+1=0', ['y=2x+1', '2x+1=y', '4x-2y+2=0'],
     ['y=2x-1', '2x+1', '0', 'y=2x', 'x=2y+1']),
    ('3x+4y=12', [r'\frac{x}{4}+\frac{y}{3}=1', '12=3x+4y'],
     ['3x+4y=13', '3x-4y=12', '12']),
    (r'y=\frac{1}{x}', ['xy=1'], ['xy=2']),
    # Names and tuples give an order, sets give none.
    ('a=1,b=2', ['1,2', 'b=2,a=1', 'a=1, 2', '(1,2)', '(a,b)=(1,2)'],
     ['2,1', 'a=2,b=1', '(2,1)', 'b=1,a=2', '2,b=1', 'a=1', 'c=1,d=2', 'b=1,2',
      r'\{2,1\}', '(b,a)=(1,2)']),
    ('a=1,b=2,c=3', ['c=3,1,2'], ['c=3,2,1', '1,3,2', 'c=1,2,3']),
    ('a_1=1,a_2=2', ['1,2'], ['2,1', 'a_2=1,a_1=2']),
    (r'\alpha=30^\circ,\beta=60^\circ', ['30,60'], ['60,30']),
    (r'\text{Al}=3,\text{Bo}=4', ['3,4'], ['4,3', r'\text{Bo}=3,\text{Al}=4']),
    ('f(n)=n, g(n)=1', ['n,1', 'g(n)=1,f(n)=n'], ['1,n']),
    (r'\{1,2\}', ['1,2', '2,1', r'\{2,1\}'], ['(1,2)', '(2,1)', '[1,2]', '1']),
    ('(1,2)', ['1,2', 'x=1,y=2', '(x,y)=(1,2)'],
     [r'\{1,2\}', '2,1', '(2,1)', '[1,2]']),
    ('(p,q)=(3,5)', ['(3,5)', '3,5', 'p=3,q=5'], ['(5,3)', '(q,p)=(3,5)']),
    ('(1,2),(3,4)', ['(x,y)=(1,2),(3,4)', r'\{(3,4),(1,2)\}'],
     ['1,2,3,4', '(1,2,3,4)', r'\{1,2\},\{3,4\}']),
    ('(1,2,3)', ['1,2,3'], ['3,2,1', r'\{1,2,3\}', '[1,2,3]', '(1,2)']),
    (r'\{1,2\},\{3,4\}', [r'\{4,3\},\{1,2\}'], ['(1,2),(3,4)']),
    (r'(\{1,2\},3)', [r'(\{2,1\},3)'], ['((1,2),3)', r'(3,\{1,2\})']),
    (r'x\in\{1,2\}', ['1,2', r'\{1,2\}'], ['(1,2)', 'y=1,y=2']),
    # Text after a number is a unit, or the answer is refused.
    ('5', [r'5\text{ apples}', '5 apples', '5 students', r'5\text{ ways}',
           r'5\text{ square units}', r'5\text{ miles per hour}', '5 dollars',
           r'5\text{ people}', r'5\ \mathrm{cm}^3', '5 feet', r'5~\text{km/h}',
           r'5\text{ cubic meters}'],
     [r'5\text{ but really 6}', r'5\text{ or 6}', r'5\text{ hundred}',
      '5 thousand', r'5\text{ million}', '5 dozens', r'5\text{ sixths}',
      r'5\text{ halves}', r'5\text{th}', r'5\text{ factorial}', '5 if x > 0',
      r'5\text{ squared}', r'5\text{ or more}', r'5\text{ plus 1}', '5 6',
      r'5\text{ is wrong, it is six}', r'5\text{ not}', '5_6', r'5\\6', '5x',
      r'5\text{ less}', r'5\text{ times}', r'\text{not }5', '5 abs', '5!',
      r'5\text{ hundred apples}', r'5\text{e1}', r'5\pi', '60_{7}', '5..6',
      r'5\lor 6', '5 mod 6', r'5\pm1', '5?6']),
    ('5 apples', ['5'], ['5 oranges', '6 apples']),
    (r'12\text{ cm}^2', [r'12\text{ square centimeters}', '12'],
     ['12 cm', '12 m', r'12\text{ cubic cm}']),
    ('12', [], ['1 2', '1~2', r'1\ 2', r'1\quad 2', '1_2', r'1\,2', '1\n2',
                r'1\text{ }2', '1|2', '1:2']),
    ('3', [], ['1 2', r'\frac{1}{1} 2', '0 3']),
    ('1', [], ['1_2', '1?']),
    ('0.5', ['.5'], ['0 .5']),
    # Fonts, mixed numbers and other notations.
    ('204', [r'\text{204 minutes}', r'\boldsymbol{204}', r'\mathbf{204}',
             r'\bm{204}', '{204}', r'204\text{ min}', r'\textcolor{red}{204}',
             r'\underline{204}', r'\fbox{204}', r'\boxed{204\text{ hours}}',
             r'\mathrm{204\ minutes}', '204 hrs', r'\mathbf{x=204}'],
     [r'\text{205 minutes}', r'\boldsymbol{205}', r'\text{204 or 205}']),
    ('1.5', ['1 1/2', r'1 \frac 1 2', r'1\,\frac12',
             r'\boldsymbol{\frac{3}{2}}'],
     ['1 1/3', '11/2', '2 1/2', r'1\cdot\frac12', '1 2']),
    ('-3/2', ['-1 1/2', r'-1\frac12'], ['1 1/2', '-1/2']),
    (r'\frac{1}{2}', [r'\frac12\text{ hour}', '1/2 hours', '50%'],
     [r'\frac12\text{ dozen}', '1/ 2 2']),
    (r'1\,000\pi', [r'1000\pi'], [r'1\pi']),
    (r'\varnothing', [r'\emptyset', r'\{ \}', '\N{EMPTY SET}'],
     ['0', r'\{0\}']),
    (r'\frac{3\pi}{4}', ['3*pi/4', 'pi*3/4', '2.356194'], ['3*pi/5', '2.3562']),
    (r'\frac{\sqrt{3}}{2}', ['sqrt(3)/2', '3^0.5/2', '0.8660254037844386',
                             '\N{SQUARE ROOT}3/2'], ['sqrt(2)/2', '0.866']),
    (r'x\ge 2', ['x\N{GREATER-THAN OR EQUAL TO}2', r'x\in[2,\infty)',
                 '2x>=4'], [r'(2,\infty)', 'x=2']),
    (r'(-\infty,-5)', ['x<-5', '-5>x', '(-\N{INFINITY},-5)'],
     ['x<=-5', 'x>-5']),
    ('x', ['2x/2'], ['2x', 'y']),
    (r'|x|', [r'\sqrt{x^2}'], ['x', '-x']),
    (r'\frac{n(n+1)}{2}', [r'\sum_{k=1}^{n} k'], [r'\sum_{k=1}^{n} k^2']),
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
