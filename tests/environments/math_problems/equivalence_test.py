"""Equal and different answers: pairs worked out by hand."""

import pytest
import sympy

from environments.math_problems import equivalence
from environments.math_problems import notation

# Gold answer, equal answers, different answers; one case for each rule.
PAIRS = (
    # Spellings of integers.
    ('204', ['$204$', '204.', '204.0', '+204', ' 204 ', '0204'],
     ['205', '-204', '2040', '204.001', '1/204', '2,04']),
    ('-8', ['\N{MINUS SIGN}8', '- 8'], ['8', '-9']),
    # The tolerance of 1e-6 would include neighbours of a large integer.
    ('10112369', ['10,112,369', '10112369.0'],
     ['10112370', '10112370.0', '10112369.01']),
    # A thousands separator, or a list.
    ('1000', ['1,000', '1{,}000', '1 000', r'1\,000'], ['1,0000', '1,00']),
    (r'1000\pi', [r'1{,}000\pi', r'1\,000\pi'], [r'1\pi']),
    ('6764, 10945', ['6{,}764, 10{,}945'], ['6{,}764, 10{,}946']),
    ('276,000', ['276000', '276 000'], ['276,0', '0,276', '276']),
    ('2500,7500', ['7500, 2500', r'\{2500,7500\}', '2500 and 7500'],
     ['2500', '2500,7501', '2500,7500,1']),
    # Not the value for coprime numbers.
    (r'm+n-\gcd(m,n)', [r'm+n-\operatorname{gcd}\left(m,n\right)'],
     ['m+n-1', r'm+n-\gcd(m,2n)']),
    (r'\gcd(12,8)', ['4'], ['1']),
    ('mn', ['nm'], [r'\lcm(m,n)', r'\frac{mn}{\gcd(m,n)}']),
    # Fractions and decimals.
    (r'$\frac{1}{2}$', ['1/2 cup', r'\dfrac12', r'\tfrac{2}{4}', '.5'],
     ['1/3', '0.51', '2', r'-\frac12']),
    (r'-\frac{17}{30}', [r'\frac{-17}{30}', '-17/30'], [r'\frac{17}{30}']),
    ('0.002', ['2e-3', '2/1000'], ['2e-4', '1/0']),
    # Percentages.
    ('62.5%', ['62.5', r'62.5\%', r'\frac{5}{8}', '62.5 percent'],
     ['6.25', '0.0625', r'63\%', r'\$62.5', '62.5 cm']),
    ('8', [r'8\%'], ['0.08', '0.08%']), ('0.5', ['50%'], ['0.5%']),
    ('60', [r'60\text{ ft.}', '60 in.', r'60\text{ sq. units}'], ['60 no.']),
    # Units.
    ('45', [r'45\text{ minutes}', r'45^{\circ}', '45 km', r'45\ \mathrm{cm}^2',
            '$45', r'\$45'], ['54', r'45\sqrt{2}', '45m']),
    (r'5\text{ cm}', ['5', '5 cm', r'5 \text{centimeters}'],
     [r'5\text{ km}', r'5\text{ cm}^2']),
    ('10', [r'10\text{ cm^2}', r'10\,\mathrm{m/s^{2}}'], [r'10^2\text{ cm}']),
    ('$6m$', [r'6 \cdot m', 'm6'], ['6', '6n', '12m']),
    # Roots, powers, logarithms, pi.
    (r'2\sqrt{10}', [r'\sqrt{40}', r'\sqrt{10}*2'], [r'10\sqrt{2}']),
    (r'1-\sqrt{2+\sqrt{3}}', ['1 - sqrt(2 + sqrt(3))', r'1 - \sqrt(2+\sqrt 3)'],
     ['1 - sqrt(2) + sqrt(3)']),
    (r'\frac{\log 2}{\log 2-\log 3}', [r'\frac{\log 2}{\log\frac{2}{3}}'],
     [r'\frac{\log 3}{\log 2-\log 3}']),
    # Formulas.
    (r'\frac{n(n+1)}{2}', [r'\frac{n^2+n}{2}', r'\binom{n+1}{2}',
                           r'\sum_{k=1}^{n} k', r'\sum_{i=1}^{n} i'],
     [r'\frac{m(m+1)}{2}', '3', r'\sum_{k=1}^{n} k^2', r'\sum_{i=0}^{n-1} i']),
    (r'$f(x)=2 x$', ['2x', 'f(x) = x+x', 'f(n)=2n'],
     ['f(x)=3x', 'g(x)=2x', '2', 'f(x)=2n']),
    (r'$f(x)=a x+b$, where $b$ is an arbitrary integer', ['f(x)=ax+b', 'ax+b'],
     ['f(x)=ax-b']),
    (r'k \geqslant 2', [r'k \ge 2', r'2 \leq k'], ['k > 2', r'k \le 2', '2']),
    ('x+y=5', ['y+x=5'], ['5']),  # math-verify alone accepts 5.
    # Capital and small letters are different variables if both occur.
    ('$N=n$', ['n', 'n=N'], ['N=N', 'N']),
    (r'\frac{R-r}{R}', [r'1-\frac{r}{R}'], ['0', '1-R/r']),
    ('0', [r'r-r'], [r'R-r', r'\sin(a)-\sin(A)']),
    # Tuples keep their order, and intervals their ends.
    ('(2,4)', [r'\left(2, 4\right)', r'\bigl(2, \frac{8}{2}\bigr)'],
     ['(4,2)', '(2,5)', '[2,4)', '(2,4,0)', '(2)']),
    (r'[\frac{1}{2}, 8]', [r'[0.5,8]'], ['(0.5,8]', '[0.5,8)', '[8,0.5]']),
    (r'(-\infty, 0) \cup\{1\}', [r'\{1\} \cup (-\infty,0)',
                                 r'(-\infty, 0)\cup \{1\}.'],
     [r'(-\infty,0]\cup\{1\}', r'(-\infty, 0)', r'(-\infty,0) \cup\{2\}']),
    # Several answers, in any order.
    ('$69$,$84$', ['84, 69', r'69 \text{ or } 84'], ['69,85', '69,84,1']),
    ('$2,-2$', [r'\pm 2', r'-2, 2'], ['2', '2,2']),
    ('$a=2$, $a=-6-4 \\sqrt{2}$', [r'-6-4\sqrt2, 2', r'a=-6-4\sqrt{2}, a=2'],
     ['2', r'2, -6+4\sqrt{2}']),
    # Exact values are compared exactly, however small or large.
    (r'\frac{1}{2^{99}}', ['2^{-99}', r'\frac{2}{2^{100}}'],
     ['0', '2^{-98}', r'\frac{1}{2^{99}+1}']),
    (r'\ln(1+10^{-20})', [], ['0', '10^{-20}']),
    (r'\sqrt{2}+\sqrt{3}', [r'\sqrt{5+2\sqrt{6}}', '3.146264'],
     [r'\sqrt{5+2\sqrt{7}}', '3.1463']),
    (r'\{2^{-99}\}\cup\{1\}', [r'\{2^{-99},1\}'], [r'\{2^{-98},1\}']),
    ('(0,2^{-99})', ['0<x<2^{-99}'], ['0<x<2^{-98}', '(0,2^{-98})']),
    ('x>2^{-99}', ['2^{-99}<x'], ['x>2^{-98}', 'x<2^{-99}']),
    (r'\begin{pmatrix}2^{-99}\\1\end{pmatrix}',
     [r'\begin{bmatrix}2^{-99}\\1\end{bmatrix}'],
     [r'\begin{pmatrix}2^{-98}\\1\end{pmatrix}']),
    # The tolerance of a decimal is relative.
    ('3e-8', ['0.00000003', r'3\cdot 10^{-8}'], ['2e-8', '0']),
    (r'6.02\times 10^{23}', ['602' + 21 * '0'], ['6.03e23', '6.02']),
    ('1/6', ['0.166667'], ['0.16667', '0.1666']),
    ('0', ['0.0', '-0', '5.551115123125783e-17'], ['1e-9', '0.0000001']),
    (r'10^{-8}\sqrt{2}', ['0.0000000141421356', '1.41421e-8'],
     ['0.0000000141', '0.00000002']),
    (r'x>\frac13', ['x>0.33333333'], ['x>0.33']),
    # Only a definition equals its right side.
    ('5', ['x=5', '5=x', '2+3=5', r'x=\frac{10}{2}=5', 'S=a+b=5', 'AB=5',
           r'\angle ABC=5', 'f(1)=5', 'P(X=2)=5', r'x_{\max}=5', "a'=5",
           r'\text{Answer}=5', '|AB|=5', r'\mathbb{E}[X]=5', r'x\in\{5\}',
           'm+n = 5', 'a+b+c=2+3=5', 'x^2+y^2=5', '|S|=5', 'AB^{2}=5'],
     ['m+n=6', 'm+n=5=6', '6=5', 'y+1=5', '2x=5', 'x=6=5', 'xy=5', '5=6',
      r'\sqrt{x}=5', 'x=5=6', '-x=5', 'x!=5', r'\frac{a}{b}=5', '|x|=5',
      r'x\ne5', r'x\not=5', 'x>5', r'x\approx 6', '5=n+1', r'5\in S',
      r'x\in 5']),
    ('x=5', ['5', '2x=10'], ['y=5', 'y+1=5', 'x+y=5', 'f(x)=5', '6=x', 'x>5']),
    ('f(2)=5', ['5'], ['f(1)=5', 'g(2)=5', 'f(2)=4']),
    (r'\angle ABC=90', ['90'], [r'\angle CAB=90']),
    ('V=IR', ['I=V/R', 'IR'], ['V=I/R']),
    ('2x-y+1=0', ['2x+1=y', '4x-2y+2=0'], ['2x+1', '0', 'y=2x', 'x=2y+1']),
    (r'y=\frac{1}{x}', ['xy=1'], ['xy=2']),
    # Names and tuples give an order, sets give none.
    ('a=1,b=2', ['1,2', 'b=2,a=1', 'a=1, 2', '(1,2)', '(a,b)=(1,2)'],
     ['2,1', '(2,1)', 'b=1,a=2', '2,b=1', 'a=1', 'c=1,d=2', 'b=1,2',
      r'\{2,1\}', '(b,a)=(1,2)']),
    ('a_1=1,a_2=2', ['1,2'], ['2,1', 'a_2=1,a_1=2']),
    (r'\alpha=30^\circ,\beta=60^\circ', ['30,60'], ['60,30']),
    (r'\text{Al}=3,\text{Bo}=4', ['3,4'], ['4,3', r'\text{Bo}=3,\text{Al}=4']),
    (r'\{1,2\}', ['2,1', r'\{2,1\}', r'\{1,2,3\}\setminus\{3\}'],
     ['(1,2)', '[1,2]', '1', r'\{1,2,3\}\setminus\{2\}']),
    ('(1,2)', ['1,2', 'x=1,y=2', '(x,y)=(1,2)'], [r'\{1,2\}', '2,1', '[1,2]']),
    ('(p,q)=(3,5)', ['(3,5)', '3,5', 'p=3,q=5'], ['(5,3)', '(q,p)=(3,5)']),
    ('(1,2),(3,4)', ['(x,y)=(1,2),(3,4)', r'\{(3,4),(1,2)\}'],
     ['1,2,3,4', '(1,2,3,4)', r'\{1,2\},\{3,4\}']),
    (r'(\{1,2\},3)', [r'(\{2,1\},3)'], ['((1,2),3)', r'(3,\{1,2\})']),
    (r'x\in\{1,2\}', ['1,2', r'\{1,2\}'], ['(1,2)', 'y=1,y=2']),
    # Text after a number is a unit, or the answer is refused.
    ('5', [r'5\text{ apples}', '5 students', r'5\text{ square units}',
           r'5\text{ miles per hour}', r'5\ \mathrm{cm}^3', r'5~\text{km/h}',
           '5 feet tall', '5 eggs left', r'\$5 per hour', r'5\text{ L}',
           '5\N{DEGREE SIGN}C', '\N{EURO SIGN}5', '5\N{CENT SIGN}'],
     [r'5\text{ but really 6}', r'5\text{ or 6}', '5 thousand', '5 dozens',
      r'5\text{ sixths}', r'5\text{th}', '5 if x > 0', r'5\text{ squared}',
      r'5\text{ plus 1}', '5 6', r'5\text{ not}', '5_6', r'5\\6', '5x',
      r'5\text{ times}', r'\text{not }5', '5 abs', '5!', r'5\text{e1}',
      r'5\pi', '60_{7}', '5..6', r'5\lor 6', '5 mod 6', r'5\pm1', '5?6',
      'negative 5', '5 negatives', '5 always', '5 fifteens', '5 twenties',
      '5 logs', r'5\text{ M}', '5 per']),
    (r'2\sqrt{3}', [r'2\sqrt{3}\text{ cm}', r'2\sqrt3\ \mathrm{cm}^2'],
     [r'2\sqrt{3}\text{ dozen}', r'2\sqrt{3}\text{ or 6}']),
    ('0', [r'0\text{ cm}', '0 apples'],
     [r'0\text{ but really 6}', '0 not 6', '0.0 plus 6']),
    ('5 apples', ['5'], ['5 oranges', '6 apples']),
    (r'12\text{ cm}^2', [r'12\text{ square centimeters}', '12'],
     ['12 cm', '12 m', r'12\text{ cubic cm}']),
    (r'5^\circ\text{C}', ['5 degrees Celsius', '5'], ['5 degrees Fahrenheit']),
    (r'\$5\text{ per hour}', [r'\$5/hour', '5'], [r'\$5\text{ per day}']),
    ('12', ['3\N{MIDDLE DOT}4'], [
        '1 2', '1~2', r'1\quad 2', '1_2', r'1\text{ }2', '1|2', '1:2']),
    ('3', [], ['1 2', r'\frac{1}{1} 2', '0 3']),
    ('0.5', ['.5'], ['0 .5']),
    # Fonts, mixed numbers and other notations.
    ('204', [r'\text{204 minutes}', r'\mathbf{204}', r'\textcolor{red}{204}',
             r'\boxed{204\text{ hours}}', r'\mathbf{x=204}'],
     [r'\text{205 minutes}', r'\boldsymbol{205}', r'\text{204 or 205}']),
    ('1.5', ['1 1/2', r'1 \frac 1 2', r'1\,\frac12'],
     ['1 1/3', '11/2', r'1\cdot\frac12', '1 2']),
    ('-3/2', ['-1 1/2', r'-1\frac12'], ['1 1/2', '-1/2']),
    (r'\varnothing', [r'\{ \}', '\N{EMPTY SET}'], ['0', r'\{0\}']),
    (r'\frac{3\pi}{4}', ['3*pi/4', '2.356194'], ['3*pi/5', '2.3562']),
    (r'\frac{\sqrt{3}}{2}', ['sqrt(3)/2', '3^0.5/2', '\N{SQUARE ROOT}3/2'],
     ['sqrt(2)/2', '0.866']),
    (r'x\ge 2', ['x\N{GREATER-THAN OR EQUAL TO}2', r'x\in[2,\infty)',
                 '2x>=4'], [r'(2,\infty)', 'x=2']),
    (r'(-\infty,-5)', ['-5>x', '(-\N{INFINITY},-5)'], ['x<=-5', 'x>-5']),
    # Periodic decimals, scales and signs in words.
    (r'\frac{1}{3}', [r'0.\overline{3}', r'.\bar3', r'0.\dot{3}'],
     ['0.3', r'0.\overline{03}', r'\overline{3}']),
    (r'\frac{1}{7}', [r'0.\dot{1}4285\dot{7}'], [r'0.1\overline{42857}']),
    (r'-\frac{283}{90}', [r'-3.1\overline{4}', r'x=-3.1\dot4'],
     [r'-3.\overline{14}', r'3.1\overline{4}']),
    ('5000000', [r'\$5 million', r'5\text{ million dollars}', '5.0 million'],
     ['5', '5 billion', '5 millionths', r'5\text{ thousand}']),
    ('-5', ['negative 5', 'minus 5'], ['5', r'\text{negative}']),
    # Angles, the imaginary unit, odd roots.
    (r'\frac{1}{2}', [r'\sin 30^\circ', r'\cos{60^{\circ}}', r'\sin^2 45^\circ',
                      r'\cos\frac\pi3'], [r'\sin 30', r'\cos 30^\circ']),
    (r'\cos 40^\circ', [r'\sin 50^\circ', r'\cos\frac{2\pi}9'],
     [r'\sin 51^\circ', r'\cos 40', r'\cos x^\circ']),
    (r'\frac{\pi}{4}', [r'\arctan 1', r'\tan^{-1}1'], [r'\arctan 2']),
    ('i', [r'\sqrt{-1}', r'\frac{i+1}{1-i}', r'e^{i\pi/2}'], ['-i', '1', 'j']),
    ('-1', ['i^2'], ['i', 'i^4', 'I^2']),
    ('5', ['|3+4i|', '(2+i)(2-i)', '2\N{SUPERSCRIPT TWO}+1'],
     ['3+4i', '(2+i)^2']),
    ('2x', ['(1+i)(1-i)x'], ['(1+i)^2x']),
    (r'-\sqrt[3]{2}', [r'\sqrt[3]{-2}'], [r'\sqrt[3]{2}']),
    ('-2', [r'\sqrt[5]{-32}'], [r'\sqrt[4]{-16}']),
    # Inequalities joined by words.
    (r'(-\infty,1)\cup(2,\infty)',
     [r'x<1\text{ or }x>2', r'2<x\lor1>x', r'\{x\mid x<1\text{ or }x>2\}'],
     [r'x\le1\text{ or }x>2', r'x<1\text{ and }x>2', r'x<1\text{ or }x>3']),
    (r'x>2\text{ or }x<1', ['x<1, x>2', r'(-\infty,1)\cup(2,\infty)'],
     ['x<1 and x>2', 'y<1 or y>2', 'x<1', 'x<1 or y>2', '(1,2)']),
    ('1<x<2', [r'x>1\text{ and }x<2', r'x<2\land 1<x'],
     [r'x>1\text{ or }x<2', r'x\ge1\text{ and }x<2']),
    ('-1<x<1', ['|x|<1', '1>|x|'], [r'|x|\le1', '|x|<2', '|y|<1', 'x^2<1']),
    (r'a<b\text{ or }c<d', ['c<d or a<b'], ['c<d and a<b']),
    ('2', [], ['x<1 or x=2', 'x<1 and x=2', 'x>1 or 2']),
    (r'p\lor q', [r'p\vee q'], [r'p\land q', 'p,q']),
    (r'p\land q', [r'p\wedge q'], [r'p\lor q']),
    (r'x\ne 1', [r'x\not=1'], ['x=1', r'x\ne 2']),
    ('x=1,y=2', [r'x=1\land y=2', r'\begin{cases}x=1\\y=2\end{cases}',
                 r'\begin{aligned}x&=1\\y&=2\end{aligned}'],
     [r'x=2\land y=1', r'\begin{cases}x=2\\y=1\end{cases}']),
    # A finite set is no interval, tuple, or other set.
    (r'\{2,3\}', ['2,3', r'\{2\}\cup\{3\}', 'x=2 or x=3'],
     ['2<x<3', '(2,3)', '[2,3]', r'x>2\text{ and }x<3', '3']),
    ('2<x<3', ['(2,3)', r'(2,3)\cap(2,5)'], [r'\{2,3\}', '2,3', '[2,3]']),
    ('x=2,x=3', ['2,3', r'\{3,2\}', r'\{2\}\cup\{3\}'],
     ['(2,3)', '3', r'\{3\}', '2<x<3', 'x=2,y=3']),
    (r'\{3\}', ['3', r'[2,3]\cap[3,4]', '[3,3]'], ['x=2 or x=3', '2,3']),
    ('|x|=2', [], ['x^2=4', '2']),
    (r'x\in(2,3)', ['(2,3)', '2<x<3'], ['2,3', 'x=2,3', '[2,3]']),
    # Names that differ in primes, arguments and membership.
    ('f(x)=x', ['f(y)=y', r'f(x)=x\ \forall x'],
     ["f'(x)=x", 'f(y)=x', r'f^{\prime}(x)=x']),
    ("f'(x)=2", ['2', r'f^{\prime}(x)=2'], ['f(x)=2', "f''(x)=2"]),
    ('f(x)=x+y', [], ['f(y)=x+y']),
    ('f(x)=0', [r'f(x)\equiv0'], [r'f(x)\equiv 0\pmod 2']),
    ('x=1,y=1', ['x=y=1', '1,1'], ['x=y=2', 'x=z=1']),
    ('x=y=1', ['y=1,x=1', '1'], ['x=1,y=2']),
    (r'1,2,\ldots,9', ['1,2,...,9', r'1, 2, \dots, 9'], ['1,2,9']),
    # Ratios, orders of letters, and signs that math-verify ignores.
    ('2:3:4', ['4:6:8', '2 : 3 : 4', 'a:b:c=2:3:4', r'1:\frac32:2'],
     ['2:4:3', '2:3', '0:0:0', '1/6', '2:3:4:5']),
    ('a:b:c=2:3:4', ['2:3:4'], ['a:c:b=2:3:4', '2:4:3']),
    ('1:0:2', ['2:0:4'], ['1:0:3', '0:1:2']),
    ('1:2', ['2:4', 'a:b=1:2'], ['2:1', '1:2:0']),
    ('8:20', ['08:20'], ['4:10', '20:08']), ('9:16', ['18:32'], ['16:09']),
    ('1100', ['f(1)=1,100'], ['(1,100)', r'\{1,100\}', r'x\in[1,100]']),
    (r'3n\cdot 2^{n-1}', ['3n 2^{n-1}'], []), (r'2\sqrt 3', ['2 sqrt 3'], []),
    (r'\pi RH', [r'\pi H R'], []), (r'10^\circ', ['10'], [r'10\%']),
    (r'2-2^{1-n}', [r'2\left[1-\frac{1}{2^n}\right]'], []),
    ('f(x)=cx', ['f(x)=cx, where c is a constant, for all real x'], []),
    (r'\{x\}+\{y\}', [r'\{y\}+\{x\}'], ['x+y']),
    (r'2.5\times 10^{-7}', ['2.5e-07'], ['2.5e-70', '2.5 07']),
    (r'\angle ABC', [r'\angle A B C'], [r'\angle ACB', 'ABC']),
    ('1A3F', [], ['3F1A']), ('2A', ['A2'], ['2B']),
    ('ABC', [r'\text{ABC}', '{ABC}'], ['BCA', 'ACB']),
    ('2024-05-06', [], ['2024-06-05']),
    ('A^T', ['A^{T}'], ['A', "A'"]),
    (r'\frac{dy}{dx}', [], [r'\frac{dx}{dy}', '0']),
    # Sets with a property, and conditions in brackets.
    (r'[2,\infty)', [r'\{x \mid x \ge 2\}', r'\{x\in\mathbb{R}: 2\le x\}'],
     [r'\{x | x>2\}', r'\{x\in\mathbb{Z}: x\ge2\}']),
    (r'x=k\pi,k\in\mathbb{Z}', [r'x=\pi k\ (k\in\mathbb{Z})'],
     [r'x=2k\pi\ (k\in\mathbb{Z})']),
    # More notations.
    ('30', [r'\binom{5}{2}\binom{3}{1}', r'3\binom52', r'\binom52(3)'],
     [r'\binom{5}{3}\binom{3}{2}+1']),
    (r'\vec{a}+2\vec{b}', [r'2\vec b+\vec a'], [r'\vec b+2\vec a', 'a+2b']),
    (r'2\mathbf{i}+3\mathbf{j}', [r'3\mathbf j+2\mathbf i'],
     [r'2\mathbf j+3\mathbf i']),
    (r'\ln 2', [r'\log_e 2', r'\log_{e}2'], [r'\log_2 2']),
    (r'\frac{7}{2}', ['3\N{VULGAR FRACTION ONE HALF}', r'\frac72',
                      r'\frac 7 2'],
     ['\N{VULGAR FRACTION ONE HALF}', r'\frac27']),
    (r'\frac{a}{b}', [r'\frac ab', r'\frac{a}b', r'\frac a{b}'], [r'\frac ba']),
    (r'\frac{n(n-1)}{2}', [r'\binom n2', r'{n \choose 2}', r'\dbinom{n}2'],
     [r'\binom 2n', r'\binom n3']),
    (r'(n!)^2', ['n!^2'], ['n!', '(n^2)!']),
    ('1024', ['2**10', r'\frac{2^{11}}2'], ['2*10', '2**11']),
    ('3', [r'\lg 1000', '\N{SQUARE ROOT}(9)', r'\log_2 8'], [r'\ln 1000']),
    ('1,2', [r'\lbrace 1,2\rbrace', r'1\text{, and }2'], [r'\lbrace 1\rbrace']),
    (r'\begin{pmatrix}1&2\\3&4\end{pmatrix}',
     [r'\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}',
      r'\frac12\begin{pmatrix}2&4\\6&8\end{pmatrix}'],
     [r'\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}', '1', '1,2,3,4']),
    (r'\frac97', [r'\approx\frac97', r'\left.\frac97\right.'],
     [r'\frac97\begin{pmatrix}1&0\\0&1\end{pmatrix}']),
    # Powers and logarithms, equal where both are real.
    (r'\ln(ab)', [r'\ln a+\ln b'], [r'\ln a\ln b', r'\ln(a+b)']),
    ('a^{bc}', ['(a^b)^c'], ['a^{b^c}']), ('(ab)^x', ['a^x b^x'], ['ab^x']),
    (r'|x|', [r'\sqrt{x^2}'], ['x', '-x']),
    (r'(1-x)\sqrt{1-x}', [r'\sqrt{(1-x)^3}'], [r'(x-1)\sqrt{1-x}']),
    (r'\sqrt{x^4-10x^3+37x^2-60x+36}', ['|x^2-5x+6|'], ['x^2-5x+6']),
    # Points and choices may be E or I.
    ('5', ['DE=5', '|AE|=5', 'E=5'], ['DE=6']), ('AE=5', ['5'], []),
    (r'\text{(E)}', ['E', '(E)', r'\textbf{(E)}'], ['e', 'D']),
    ('a+b', ['AB=a+b', '|AB|=a+b', '[ABC]=a+b'], ['AB=a+c']),
    (r'\angle B E A_{1}=90, \angle A E B_{1}=90', ['90, 90'], ['90, 91']),
    # Capitals are no constants, and choices have an order.
    ('e', ['e^1'], ['E']), ('i', [], ['I']), ('E', [], ['e']),
    (r'\frac{Rrs}{2}', [r'\frac{R\cdot r\cdot s}{2}'],
     [r'\frac{r^2s}{2}', r'\frac{R^2s}{2}']),
    ('C', ['c', '(c)'], ['d']), (r'\Pi', [r'\Pi'], [r'\pi']),
    (r'\Delta x', [r'x\Delta'], [r'\delta x']),
    ('2e', [], ['2E']), ('1500', ['1.5E3', '1.5e3'], []), ('AB', [], ['BA']),
    # Words, and numbers after words, are in order.
    (r'\text{Yes}', ['yes', r'\textbf{Yes}'], ['no', 'sey', '1']),
    ('Alice beats Bob', [r'\text{Alice beats Bob}'], ['Bob beats Alice']),
    ('5 hours 30 minutes', [r'5\text{ hours }30\text{ minutes}'],
     ['30 hours 5 minutes', '5 minutes 30 hours']),
    ("45^\\circ 30'", ["45\N{DEGREE SIGN}30'"], ["30^\\circ 45'"]),
    (r'3\text{ R }5', ['3 R 5'], [r'5\text{ R }3', '15R']),
    ('540', ['540 sheep'], ['540 sleep']),
    ('3,628,800', ['10!', 'x=3628800', r'\text{Total}=\$3,628,800'], ['11!']),
    ('3628800', ['x=3,628,800'], ['x=3, 628, 800', '3,628,801']),
    (r'2\cos x', ['2 cos x'], ['2 sin x']),
    # Brackets around a quotient of letters are a floor; fractional parts.
    (r'\left\lfloor\frac{n}{2}\right\rfloor',
     ['[n/2]', r'\left[\frac n2\right]'], [r'\frac n2', '(n/2)']),
    (r'\frac n2', ['(n/2)', '[n]/2'], ['[n/2]', r'\left[\frac n2\right]']),
    (r'\{x\}+1', [r'1+\{x\}'], ['x+1']),
    # Another answer may follow a condition.
    ('$f(x)=x$, $f(x)=2-x$', [r'f(x)=x\text{ for all }x, f(x)=2-x'],
     ['f(x)=x for all x']),
    ('f(x)=0', ['f(x)=0 for all x, y'], ['f(x)=0 for all x, or f(x)=x']),
    ('3', [], [r'3\text{ for }n=2, 5\text{ otherwise}']),
)


@pytest.mark.parametrize('gold, equal, different', PAIRS)
def test_equal_answers_are_accepted_and_others_refused(gold, equal, different):
  assert equivalence.equivalent(gold, gold)
  assert [x for x in equal if not equivalence.equivalent(x, gold)] == []
  assert [x for x in different if equivalence.equivalent(x, gold)] == []


def test_values_at_a_point_tell_most_different_formulas(monkeypatch):
  asked = []
  monkeypatch.setattr(sympy.Expr, 'equals', lambda *pair: asked.append(pair))
  for answer, gold in (
      ('x-y', 'y-x'), (r'2^{-99}x', r'2^{-98}x'), (r'\sin x', r'\cos x'),
      ('ix', 'x'), ('x', 'x+10^{-30}')):
    assert not equivalence.equivalent(answer, gold)
  assert not asked
  equivalence.equivalent(r'\sum_{k=1}^{n} k^k', 'n+1')  # Of unknown length.
  assert asked


@pytest.mark.parametrize('text', ['', '$$', '.', r'\ ', ';'])
def test_empty_answers_equal_nothing(text):
  assert not equivalence.equivalent(text, text)
  assert not equivalence.equivalent(text, '0')
  assert not equivalence.equivalent('0', text)
  assert not equivalence.equivalent('and', 'or')


@pytest.mark.parametrize('text, is_number', [
    ('-1/2', True), ('(1, 2), (3, 4)', True), ('2e-3', True), ('5 km/h', True),
    ('()', False), ('1, six', False), ('2x', False), ('1/0', False)])
def test_is_number(text, is_number):
  assert notation.is_number(text) is is_number
