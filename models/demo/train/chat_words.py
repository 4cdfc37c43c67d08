"""Word lists of the conversations: keys to look up, wordings of users, small talk."""

import random

import lexicon as lex

LANDS = """Norway Sweden France Spain Italy Poland Greece Turkey Egypt Kenya India China Japan Peru
Chile Brazil Canada Mexico Cuba Iceland Ireland Finland Austria Hungary Malta Nepal Oman Ghana
Ecuador Latvia""".split()
SURNAMES = """Hill Brook Stone Field Wood Lake Olsen Novak Rossi Meyer Silva Costa Moreau Kovac Lind
Berg Park Reed Moss Frost""".split()
TOPICS = """gravity copper amber tides thunder bees owls whales maple oak granite quartz comet
eclipse volcano glacier desert delta compass sundial windmill lighthouse anchor harp cello sonnet
chess cinnamon saffron barley rye yeast cotton linen silk ink paper printing steam magnet prism lens
atom enzyme fern moss lichen coral""".split()
MATERIALS = "wood iron glass paper stone wool clay silver leather cotton".split()
USES = """to carry water|to keep warm|to find the way|to make music|to mark a page|to open a door|to
light a room|to cut bread|to measure time|to catch fish""".replace("\n", " ").split("|")
SYLLABLES = """ba be bo da de di do fa fe go ka ke ki la le lo ma me mi na ne no ra ri ro sa si so
ta te ti to va ve zu za""".split()
ENDS = "l m n r s t k x".split()
SONGS = ["Blue Moon", "Red River", "Silver Rain", "Old Road", "Night Train", "Green Hills"]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

ROLES = "assistant helper friend teacher storyteller librarian machine model".split()
MANNERS = "helpful friendly kind small careful patient quiet honest clever".split()
ORDERS = ("Answer in short sentences.|Be brief.|Use the tools when they help.|Help the user."
          "|Answer in plain words.|Be kind.|Think before you answer.|Never guess.|")


def pick(rng: random.Random, options: str) -> str:
    """One of the options between the bars."""
    return rng.choice(options.split("|"))


def system_text(rng: random.Random) -> str:
    role = article(f"{rng.choice(MANNERS)} {rng.choice(ROLES)}")
    owner = rng.choice(["", "", f" of {rng.choice(lex.NAMES)}", f" in {place(rng)}"])
    return f"You are {role}{owner}. {pick(rng, ORDERS)}".strip()


def roughened(rng: random.Random, text: str) -> str:
    """Some users write a small first letter or leave out the last stop."""
    if rng.random() < 0.15:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.15 and text[-1] in ".?!" and len(text) > 1:
        text = text[:-1]
    return text


def invented(rng: random.Random) -> str:
    """A word that no list holds, so that the model learns to copy rather than to choose."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))) + rng.choice(ENDS)


def person(rng: random.Random) -> str:
    return f"{rng.choice(lex.NAMES)} {rng.choice(SURNAMES)}"


def first_name(rng: random.Random) -> str:
    return invented(rng).capitalize() if rng.random() < 0.2 else rng.choice(lex.NAMES)


def place(rng: random.Random) -> str:
    return rng.choice(lex.TOWNS + LANDS + [invented(rng).capitalize()] * 8)


def time_of_day(rng: random.Random) -> str:
    hour, minute = rng.randrange(24), rng.randrange(60)
    if rng.random() < 0.8:
        return f"{hour:02}:{minute:02}"
    return f"{hour % 12 + 1}:{minute:02} {'am' if hour < 12 else 'pm'}"


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
