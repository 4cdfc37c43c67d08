"""A grammar of short stories: one hero, one goal, one obstacle, one helper, one ending.

`story(rng)` returns one paragraph that ends in a newline. Every line of the demo corpus begins with
a letter and ends in a newline, so lines may be tokenized one by one: the pre-tokenizer of
DeepSeek-V4 never joins text across such a boundary.
"""

import random

import lexicon as lex


def cast(rng: random.Random, hero: str | None = None, thing: str | None = None) -> dict[str, str]:
    """Draws the characters and objects of one story, with pronouns that fit."""
    hero = hero or rng.choice(lex.NAMES)
    friend = rng.choice([n for n in lex.NAMES if n != hero])
    girl, friend_girl = hero in lex.GIRLS, friend in lex.GIRLS
    thing = thing or rng.choice(lex.THINGS)
    animal, other = rng.sample(lex.ANIMALS, 2)
    return {
        "hero": hero, "friend": friend, "thing": thing, "animal": animal, "other": other,
        "he": "she" if girl else "he", "him": "her" if girl else "him",
        "his": "her" if girl else "his", "He": "She" if girl else "He",
        "His": "Her" if girl else "His",
        "fhe": "she" if friend_girl else "he", "fHe": "She" if friend_girl else "He",
        "fhis": "her" if friend_girl else "his", "child": "girl" if girl else "boy",
        "color": rng.choice(lex.COLORS), "setting": rng.choice(lex.SETTINGS),
        "weather": rng.choice(lex.WEATHER), "food": rng.choice(lex.FOODS),
        "place": rng.choice(lex.PLACES), "town": rng.choice(lex.TOWNS),
    }


OPENINGS = [
    "Once there was a {child} named {hero} who lived in a {setting}.",
    "{hero} was a {child} from a {setting}.",
    "In a {setting} there lived a {child} named {hero}.",
    "Long ago, in a {setting}, a {child} named {hero} had a {color} {thing}.",
]
SCENES = [
    "{weather}, and {hero} went out early.",
    "{weather} when {hero} woke up.",
    "{weather}. {hero} ate some {food} and looked out of the window.",
    "One day {hero} walked to the market with {his} friend {friend}.",
]

# Each plot: goal, obstacle, helper, deed, success. The alternatives of a step are interchangeable.
PLOTS = [
    [  # something was lost
        ["{He} wanted to play with {his} {thing}, but it was gone.",
         "{He} looked for {his} {color} {thing} and could not find it.",
         "That day {hero} lost {his} {thing} and felt very sad."],
        ["{He} looked behind the {place} and in every room, but the {thing} was not there.",
         "{He} asked all the people in the street, but nobody had seen the {thing}.",
         "It was getting dark, and the path was hard to see."],
        ["Then a small {animal} came and said, \"I know where it is.\"",
         "An old {animal} heard {him} cry and stopped to help.",
         "{friend} came and said, \"Do not worry, we will look together.\""],
        ["They went to the {place} and looked under it.",
         "They followed the marks in the grass for a long time.",
         "They walked along the river until they saw something shine."],
        ["There was the {thing}, safe and clean.",
         "The {thing} was lying there, and {hero} laughed with joy.",
         "{hero} took the {thing} and held it close."],
    ],
    [  # a gift for a friend
        ["{friend} had a birthday, and {hero} wanted to give {friend} a {thing}.",
         "{hero} made a plan: {he} would bring a {thing} to {friend} in {town}.",
         "{hero} had found a fine {color} {thing} for {his} friend {friend}."],
        ["But the bridge over the river was broken.",
         "But a big {other} stood in the road and would not move.",
         "But the way was long, and soon {he} was tired and hungry."],
        ["A kind {animal} said, \"Come with me, I know another way.\"",
         "A {animal} saw {him} and gave {him} some {food}.",
         "\"Let me help you,\" said a {animal} from behind the {place}."],
        ["{hero} thanked the {animal}, and they went on together.",
         "The {animal} carried the {thing}, and {hero} carried the {food}.",
         "Together they found a safe path through the trees."],
        ["At last {friend} opened the door and saw the {thing}. {fHe} was very happy.",
         "When {friend} saw the {thing}, {fhe} smiled and hugged {hero}.",
         "{friend} put the {thing} on the table, and they all ate {food}."],
    ],
    [  # an animal in trouble
        ["Near the {place} {he} heard a cry. A little {animal} could not get out of a hole.",
         "{He} saw a {animal} that was caught in a fence.",
         "A young {animal} sat under the {place} and could not walk."],
        ["{hero} pulled and pulled, but {he} was not strong enough.",
         "The {animal} was afraid and would not come near.",
         "There was nobody else on the road, and it began to rain."],
        ["So {he} ran to {friend} and told {fhis} family about it.",
         "Then {friend} came along the road with a {thing}.",
         "{hero} remembered {his} {thing} and had an idea."],
        ["With the {thing} they made the hole wider and wider.",
         "They used the {thing} and worked until the evening.",
         "They spoke softly and gave the {animal} some {food}."],
        ["Soon the {animal} was free and jumped around them.",
         "The {animal} thanked {hero} and became {his} friend.",
         "The {animal} was well again, and {hero} took it home."],
    ],
    [  # building and fixing
        ["{hero} wanted to build a house for the {animal}.",
         "The {place} was broken, and {hero} wanted to mend it.",
         "{hero} wished to make a new {thing} for the people of {town}."],
        ["But {he} had no wood and no {thing}.",
         "But the work was hard, and the first try fell down.",
         "But a strong wind came and took everything away."],
        ["{friend} brought a {thing} and said, \"Two can do more than one.\"",
         "An old {other} showed {him} how to do it well.",
         "A {other} from {town} came and gave {him} good advice."],
        ["They worked all day and did not stop to rest.",
         "Step by step they put every part in its place.",
         "{hero} tried again, slowly and with care."],
        ["In the end it was better than before, and {hero} was proud.",
         "When it was done, the {animal} danced with joy.",
         "All the people came to look, and {hero} thanked {friend}."],
    ],
    [  # a journey
        ["{hero} had heard of a {color} {thing} in the town of {town}, and {he} wanted to see it.",
         "{He} took a map and some {food} and set out for {town}.",
         "{hero} and {friend} wanted to go to {town} to see the great {thing}."],
        ["At noon they came to a dark forest and lost the way.",
         "A river was in the way, and there was no boat.",
         "In the night it grew cold, and the fire went out."],
        ["A {animal} sat on the {place} and said, \"Follow me.\"",
         "They met a wise {animal} that knew every road.",
         "Far away they saw a light. It was the house of a {animal}."],
        ["The {animal} led them through the trees until morning.",
         "They slept there, and the next day the {animal} showed them the road.",
         "They shared their {food} with the {animal} and went on."],
        ["In {town} they saw the {thing}, and it was more beautiful than they had thought.",
         "So they came to {town}, and {hero} touched the {thing} with {his} own hand.",
         "The {thing} of {town} shone in the sun, and they were glad that they had come."],
    ],
]
ENDINGS = [
    "From that day on, {hero} never forgot the {animal}.",
    "That evening {hero} went home and slept well.",
    "And {hero} learned that a good friend is worth more than gold.",
    "{hero} told the story to everyone at home, and they all laughed.",
    "{His} heart was light, and {he} sang all the way home.",
    "So the day that began badly ended well.",
]


def story(rng: random.Random, hero: str | None = None, thing: str | None = None) -> str:
    """One story of about 120 tokens, as a single line."""
    words = cast(rng, hero, thing)
    steps = [rng.choice(OPENINGS), rng.choice(SCENES)]
    steps += [rng.choice(options) for options in rng.choice(PLOTS)]
    steps.append(rng.choice(ENDINGS))
    return " ".join(steps).format_map(words) + "\n"
