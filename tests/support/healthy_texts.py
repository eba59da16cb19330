"""Answers as healthy models write them: several languages, code, lists and JSON, from models of
any strength, cut at any length.

Each text grows from real sentences by a chain over their words (over their characters, where a
language writes no spaces), so it is not a copy: a low temperature follows the sentences, a high one
jumps. `HealthyRun` is a whole benchmark: the answers to the probe and those of the load.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from workbench.model.answer_probe import Ask, Probed, ProbePart, make_long_ask, make_short_asks
from workbench.model.answer_text import Answer

# language -> (characters per token, sentences)
SENTENCES: dict[str, tuple[float, str]] = {
    "English": (
        4.6,
        "Rivers shape valleys by wearing away rock over thousands of years. The water carries sand "
        "and stones, which scrape the bed and make it deeper. In its lower course, a river flows "
        "more slowly and leaves the sand behind, so that the valley becomes wide and flat.",
    ),
    "German": (
        3.9,
        "Flüsse formen Täler, indem sie über Jahrtausende Gestein abtragen. Das Wasser führt Sand "
        "und Steine mit sich, die das Flussbett vertiefen. Im Unterlauf fließt der Fluss langsamer "
        "und lagert den Sand wieder ab, sodass das Tal breit und flach wird.",
    ),
    "French": (
        3.8,
        "Les rivières façonnent les vallées en érodant la roche pendant des milliers d'années. "
        "L'eau transporte du sable et des pierres qui creusent le lit. Plus bas, le courant "
        "ralentit et dépose ces sédiments, et la vallée s'élargit peu à peu.",
    ),
    "Spanish": (
        4.0,
        "Los ríos forman los valles al desgastar la roca durante miles de años. El agua arrastra "
        "arena y piedras que excavan el cauce. En su curso bajo, el río fluye más despacio y deja "
        "los sedimentos, de modo que el valle se hace ancho y llano.",
    ),
    "Polish": (
        2.9,
        "Rzeki kształtują doliny, przez tysiące lat odrywając kawałki skał. Woda niesie piasek i "
        "kamienie, które pogłębiają koryto. W dolnym biegu rzeka płynie wolniej i zostawia piasek, "
        "więc dolina staje się szeroka i płaska, a jej brzegi są porośnięte trawą.",
    ),
    "Turkish": (
        3.1,
        "Nehirler binlerce yıl boyunca kayaları aşındırarak vadileri şekillendirir. Su, yatağı "
        "derinleştiren kum ve taşları taşır. Aşağı kesimlerde nehir daha yavaş akar ve kumu "
        "bırakır, böylece vadi genişler ve düzleşir.",
    ),
    "Vietnamese": (
        2.8,
        "Các con sông tạo nên thung lũng bằng cách bào mòn đá trong hàng nghìn năm. Nước mang theo "
        "cát và sỏi làm cho lòng sông sâu hơn. Ở hạ lưu, dòng sông chảy chậm hơn và để lại phù sa, "
        "vì vậy thung lũng trở nên rộng và bằng phẳng.",
    ),
    "Russian": (
        3.2,
        "Реки формируют долины, тысячелетиями размывая горные породы. Вода несёт песок и камни, "
        "которые углубляют русло. В нижнем течении река течёт медленнее и оставляет песок, "
        "поэтому долина становится широкой и плоской.",
    ),
    "Greek": (
        2.4,
        "Τα ποτάμια διαμορφώνουν τις κοιλάδες διαβρώνοντας τα πετρώματα για χιλιάδες χρόνια. Το "
        "νερό μεταφέρει άμμο και πέτρες που βαθαίνουν την κοίτη. Στον κάτω ρου ο ποταμός κυλά πιο "
        "αργά και αφήνει πίσω του την άμμο.",
    ),
    "Hebrew": (
        2.3,
        "נהרות מעצבים עמקים על ידי שחיקת סלעים במשך אלפי שנים. המים נושאים חול ואבנים המעמיקים את "
        "האפיק. במורד הנהר הזרם איטי יותר והחול שוקע, ולכן העמק נעשה רחב ושטוח.",
    ),
    "Arabic": (
        2.6,
        "تشكل الأنهار الوديان عن طريق تآكل الصخور على مدى آلاف السنين. تحمل المياه الرمال والحجارة "
        "التي تعمق المجرى. وفي المجرى السفلي يتدفق النهر ببطء ويترك الرمال، فيصبح الوادي واسعا "
        "ومسطحا.",
    ),
    "Hindi": (
        2.2,
        "नदियाँ हज़ारों वर्षों तक चट्टानों को काटकर घाटियों को आकार देती हैं। पानी अपने साथ रेत और पत्थर "
        "ले जाता है, जो तल को गहरा करते हैं। निचले भाग में नदी धीरे बहती है और रेत छोड़ देती है, इसलिए "
        "घाटी चौड़ी और समतल हो जाती है।",
    ),
    "Thai": (
        1.9,
        "แม่น้ำสร้างหุบเขาโดยการกัดเซาะหินเป็นเวลาหลายพันปี น้ำพัดพาทรายและก้อนหินซึ่งทำให้ท้องน้ำลึกขึ้น "
        "ในช่วงปลายน้ำ แม่น้ำไหลช้าลงและทิ้งทรายไว้ หุบเขาจึงกว้างและราบเรียบ",
    ),
    "Chinese": (
        1.5,
        "河流在数千年间侵蚀岩石,从而塑造山谷。水流携带沙子和石头,使河床变得更深。在下游,"
        "河水流得更慢,把泥沙留在两岸,因此山谷变得宽阔而平坦。人们常常在这样的平原上耕种和居住。",
    ),
    "Japanese": (
        1.4,
        "川は何千年もかけて岩を削り、谷を形作ります。水は砂や石を運び、川底を深くしていきます。"
        "下流では流れが遅くなり、砂が積もるため、谷は広く平らになります。人々はそこで田を作りました。",
    ),
    "Korean": (
        1.7,
        "강은 수천 년 동안 바위를 깎아 계곡을 만듭니다. 물은 모래와 돌을 운반하여 강바닥을 더 깊게 "
        "합니다. 하류에서는 물이 더 천천히 흐르고 모래를 남기므로 계곡이 넓고 평평해집니다.",
    ),
    "Python": (
        3.0,
        "def valley_width(years: int, rate: float = 0.01) -> float:\n    width = 1.0\n    for year in "
        "range(years):\n        if year % 100 == 0:\n            rate *= 0.99\n        width += rate "
        "* depth[year]\n    return round(width, 3)\n\nclass River:\n    def __init__(self, name):\n"
        "        self.name = name\n",
    ),
    "C": (
        2.7,
        "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n        if "
        '(depth[i] > max) { max = depth[i]; }\n    }\n    printf("%d\\n", max);\n    return 0;\n}\n',
    ),
    "JSON": (
        2.6,
        '{"place": "valley", "topic": "rivers", "sentences": ["Water wears away rock.", "Sand is '
        'carried down the valley."], "numbers": [1, 2, 3, 4], "nested": {"wide": true, "deep": '
        "null}}\n",
    ),
    "Markdown": (
        3.6,
        "## How rivers shape valleys\n\n1. **Erosion**: water wears away rock.\n2. **Transport**: "
        "sand and stones move down.\n3. **Deposition**: the river leaves them in the plain.\n\n| "
        "part | speed |\n|---|---|\n| upper | fast |\n| lower | slow |\n\n",
    ),
    "LaTeX": (
        2.5,
        "The erosion rate is $E = k \\cdot A^m \\cdot S^n$, where $A$ is the drainage area and $S$ "
        "the slope. \\begin{equation} \\frac{dz}{dt} = U - k A^m S^n \\end{equation} In equilibrium "
        "$U = E$ and the slope does not change. ",
    ),
    "words": (
        5.4,
        "time year people way day man thing woman life child world school state family student "
        "group country problem hand part place case week company system program question work "
        "government number night point home water room mother area money story ",
    ),
    "numbers": (
        2.0,
        "1. 12.5 mm 2. 13.1 mm 3. 12.9 mm 4. 14.0 mm; the mean of 12 values is 13.2 mm (sd 0.61). "
        "In 1997, 2003 and 2016 it was above 15.7 mm, 16.2 mm and 18.8 mm. ",
    ),
    "emoji": (
        2.9,
        "Rivers carve valleys! 🌊🏞️ First they wear away rock 🪨, then they carry sand and stones "
        "downstream ⬇️. In the end the valley is wide and green 🌱🌾. Isn't that great? 😊 ",
    ),
}
_NO_SPACES = ("Chinese", "Japanese", "Thai")
_NATURAL = tuple(name for name in SENTENCES if name not in ("words", "numbers"))


def text(draw: random.Random, kind: str, characters: int, jump: float) -> str:
    """Return about `characters` characters of a kind. `jump` is the share of words after which the
    text goes on at another place where the same word stands, or at any place."""
    source = SENTENCES[kind][1]
    pieces = list(source) if kind in _NO_SPACES else source.replace("\n", " \n ").split(" ")
    joint = "" if kind in _NO_SPACES else " "
    characters = characters if jump else min(characters, len(source))
    places = defaultdict(list)
    for place, piece in enumerate(pieces):
        places[piece].append(place)
    said: list[str] = []
    size, place = 0, draw.randrange(len(pieces)) if draw.random() < 0.5 else 0
    while size < characters:
        said.append(pieces[place])
        size += len(pieces[place]) + len(joint)
        if draw.random() < jump:
            same = places[pieces[place]]
            place = draw.choice(same) if len(same) > 1 else draw.randrange(len(pieces))
        place = (place + 1) % len(pieces)
    return joint.join(said).replace(" \n ", "\n")[:characters]


def babble(draw: random.Random, characters: int) -> str:
    """Return what a tiny model writes: letters that often follow each other, without sense."""
    source = SENTENCES["English"][1].lower()
    follows = defaultdict(list)
    for one, other in pairwise(source):
        follows[one].append(other)
    said = [draw.choice("abcdefghi")]
    while len(said) < characters:
        said.append(draw.choice(follows[said[-1]]))
    return "".join(said)


@dataclass
class HealthyRun:
    """A benchmark of a healthy model: the seed decides its language, strength and load."""

    seed: int

    def __post_init__(self) -> None:
        draw = self._draw = random.Random(self.seed)
        self.kind = draw.choice(_NATURAL)
        self.per_token = SENTENCES[self.kind][0] * draw.uniform(0.75, 1.3)
        self.strength = draw.choice(("strong", "strong", "strong", "weak", "tiny"))
        self.jump = draw.choice((0.0, 0.02, 0.1, 0.3))
        self.reasons = draw.random() < 0.25
        self.length = draw.choice((16, 40, 64, 128, 256, 1024))
        self.ignore_eos = draw.random() < 0.7
        self.long_tokens = draw.choice((128, 1000, 8000))

    def probed(self) -> list[Probed]:
        together = self._draw.choice((1, 4, 16))
        before = [*make_short_asks(2), *self._long()]
        after = [*make_short_asks(1), *self._long()]
        if together > 1:
            before += make_short_asks(together, ProbePart.TOGETHER)
            after += make_short_asks(together, ProbePart.TOGETHER)
        return [self._probe(ask, after=False) for ask in before] + [
            self._probe(ask, after=True) for ask in after
        ]

    def _long(self) -> list[Ask]:
        return [make_long_ask(self.long_tokens, n) for n in range(2)]

    def _probe(self, ask: Ask, *, after: bool) -> Probed:
        draw = self._draw
        tokens = draw.randint(20, 64)
        follows = {"strong": 0.995, "weak": 0.6, "tiny": 0.0}[self.strength]
        opening = f"The code word is {ask.word}. " if draw.random() < follows else ""
        said = opening + self._text(int(tokens * self.per_token))
        thought = f"The user wants the code word {ask.word}. " if self.reasons else ""
        made = max(1, round(len(said + thought) / self.per_token) + draw.randint(0, 6))
        answer = Answer(
            said,
            thought,
            output_tokens=made,
            prompt_tokens=round(ask.count_words * draw.uniform(1.1, 1.6)) + 9,
            finish_reason="stop",
            model="m",
            prompt=ask.prompt,
        )
        recounted = round(len(answer.all_text) / self.per_token * draw.uniform(0.92, 1.08))
        return Probed(ask, answer, recounted=recounted, after=after)

    def _text(self, characters: int) -> str:
        if self.strength == "tiny":
            return babble(self._draw, characters)
        return text(self._draw, self.kind, characters, self.jump)

    def load(self) -> list[Answer]:
        return [self._loaded(n) for n in range(self._draw.choice((4, 16, 48)))]

    def short_load(self) -> list[Answer]:
        """Return answers that the model ends where it wants: many are a word, and some have no
        text at all."""
        draw = self._draw
        ends = draw.choice((0.02, 0.1, 0.3, 0.6))  # after each token
        style = draw.choice(("text", "words", "one word", "numbers"))
        if style == "one word":
            ends = 0.3  # a long answer of one word is a fault
        return [self._short(number, ends, style) for number in range(draw.choice((8, 16, 64)))]

    def _short(self, number: int, ends: float, style: str) -> Answer:
        draw, tokens = self._draw, 0
        while tokens < self.length and draw.random() >= ends:
            tokens += 1
        word = {
            "words": draw.choice(["river", "stone", "cloud", "meadow", "lamp"]),
            "one word": "river",
        }
        if style == "text":
            said = self._text(round(tokens * self.per_token)) if tokens else ""
        elif style == "numbers":
            said = " ".join(str(draw.randrange(100)) for _ in range(tokens))
        else:
            said = " ".join([word[style]] * tokens)
        return Answer(
            said,
            output_tokens=tokens + 1,  # with the end mark
            finish_reason="stop",
            model="m",
            prompt=f"{number}",
        )

    def _loaded(self, number: int) -> Answer:
        """Return an answer of the load. If the model must not end it, it may repeat itself, write
        line breaks, or hide its end marks, so that usage counts more tokens than the text has."""
        draw, tokens = self._draw, self.length
        natural = tokens if draw.random() < 0.3 else draw.randint(8, max(9, tokens))
        said = f"{number} " + self._text(int(natural * self.per_token))
        if self.ignore_eos:
            tail = draw.choice(("\n", "repeat", "hidden", "more"))
            if tail == "repeat":
                said = (said + "\n") * (1 + tokens // natural)
            elif tail == "more":
                said += self._text(int((tokens - natural) * self.per_token))
            elif tail == "\n":
                said += "\n" * (tokens - natural)
        else:
            tokens = max(1, round(len(said) / self.per_token))
        first, last = said[:2048], said[2048:][-512:]
        return Answer(
            first,
            end=last,
            characters=len(said),
            output_tokens=tokens,
            model="m",
            prompt=f"{number}",
        )
