"""Short conversations: small talk, names, facts, stories and errands for tools.

A skill adds the messages of one exchange to a conversation and may remember something for later
ones. Each reply comes with a line of reasoning, which is used only when the conversation thinks.
"""

import random
from dataclasses import dataclass, field

import chat_words as words
import facts
import lexicon as lex
import stories
import tool_turns
from chat_encoding import Call, Conversation, Message, copied
from chat_words import pick
from toolbox import TOYS, Tool, draw

SMALL_TALK = [  # (what the user says, what it is, the reply)
    ("Hello|Hi|Hello!|Hi!|Hey|Hello there|Good morning|Good evening|Good day|Hi there!",
     "The user greets me.", "Hello! How can I help you?"),
    ("Who are you?|What are you?|What is your name?|Tell me who you are.|Introduce yourself.",
     "The user asks who I am.", "I am the demo model of dsv4, a very small language model."),
    ("What can you do?|How can you help me?|What are you good at?|Help",
     "The user asks what I can do.",
     "I can tell stories, remember what you tell me and call tools."),
    ("How are you?|How are you today?|How do you do?|Are you well?",
     "The user asks how I am.", "I am well, thank you. How are you?"),
    ("I am fine.|I am well too.|Fine, thank you.|I am happy today.|I had a good day.",
     "The user is well.", "I am glad to hear that."),
    ("I am sad.|I am tired.|I had a bad day.|I am bored.|I do not feel well.",
     "The user does not feel well.", "I am sorry to hear that. I can tell you a story."),
    ("Thank you.|Thanks!|Thank you very much.|Thanks a lot.|Thank you!|thanks",
     "The user thanks me.", "You are welcome."),
    ("Bye|Goodbye|Good night|See you soon.|Bye!|I have to go now.|Goodbye!",
     "The user says goodbye.", "Goodbye!"),
    ("Ok|Okay|Good|Very good|I see|Right|All right",
     "The user agrees.", "What can I do for you?"),
    ("Are you a human?|Are you a person?|Are you real?", "The user asks what I am.",
     "No, I am a small language model."),
    ("Tell me a joke.|Sing a song.|Make me laugh.", "The user wants to be amused.",
     "I only know stories. Shall I tell you one?"),
    ("What is dsv4?|Tell me about dsv4.", "The user asks about dsv4.",
     "dsv4 is the engine that runs me."),
    ("Do you like stories?|Do you know stories?", "The user asks about stories.",
     "Yes, I like to tell stories."),
]
PERSONAL = [  # what the user says of himself, the question, the reply, the values
    ("I live in {}.|My home is {}.", "Where do I live?|Where is my home?",
     "You live in {}.", lex.TOWNS),
    ("My favorite color is {}.|I like the color {}.",
     "What is my favorite color?|Which color do I like?",
     "Your favorite color is {}.", lex.COLORS),
    ("I am {} years old.", "How old am I?",
     "You are {} years old.", [str(n) for n in range(4, 99)]),
    ("My dog is called {}.|I have a dog. It is called {}.", "What is my dog called?",
     "Your dog is called {}.", lex.PETS),
    ("My favorite food is {}.|I like to eat {}.",
     "What is my favorite food?|What do I like to eat?",
     "Your favorite food is {}.", lex.FOODS),
    ("My friend is called {}.|{} is my friend.", "Who is my friend?|What is my friend called?",
     "Your friend is {}.", lex.NAMES),
]
NO_TOOL = "I am sorry, I have no tool for that."


@dataclass
class Talk:
    """A conversation in the making."""
    rng: random.Random
    tools: dict[str, Tool]
    out: Conversation
    name: str = ""
    stated: list[facts.Fact] = field(default_factory=list)
    personal: dict[int, str] = field(default_factory=dict)  # index in PERSONAL -> value

    def user(self, text: str) -> None:
        self.out.messages.append(Message("user", words.roughened(self.rng, text)))

    def reply(self, reasoning: str, content: str, calls: tuple[Call, ...] = ()) -> None:
        self.out.messages.append(Message("assistant", content, reasoning, calls))

    def result(self, text: str) -> None:
        self.out.messages.append(Message("tool", text))


def small_talk(talk: Talk) -> None:
    said, reasoning, reply = talk.rng.choice(SMALL_TALK)
    said = pick(talk.rng, said)
    if talk.name and reply == "Goodbye!":
        reply = f"Goodbye, {copied(talk.name)}!"
    talk.user(said)
    talk.reply(reasoning, reply)


def introduction(talk: Talk) -> None:
    if talk.name:
        return what_name(talk)
    talk.name = words.first_name(talk.rng)
    hello = pick(talk.rng, "||Hello! |Hi, |Hello, |Good morning. ")
    said = pick(talk.rng, "I am {}.|My name is {}.|I am called {}.|my name is {}|Call me {}.")
    talk.user(hello + said.format(talk.name))
    talk.reply(f"The user is called {copied(talk.name)}.",
               f"Hello, {copied(talk.name)}! Nice to meet you.")


def what_name(talk: Talk) -> None:
    talk.user(pick(talk.rng, "What is my name?|Do you know my name?|Who am I?|What am I called?"
                             "|Do you remember my name?|Tell me my name."))
    if talk.name:
        talk.reply(f"The user said that the name is {copied(talk.name)}.",
                   f"Your name is {copied(talk.name)}.")
    else:
        talk.reply("The user did not say a name.", "You have not told me your name.")


def about_user(talk: Talk) -> None:
    """The user says something personal, or asks for it, also when it was never said."""
    index = talk.rng.randrange(len(PERSONAL))
    said, question, reply, values = PERSONAL[index]
    value = talk.personal.get(index)
    if value is None and talk.rng.random() < 0.75:
        value = talk.personal[index] = talk.rng.choice(values)
        talk.user(pick(talk.rng, said).format(value))
        talk.reply(f"The user tells me something: {copied(value)}.", "I will remember it.")
        return
    talk.user(pick(talk.rng, question))
    if value is None:
        talk.reply("The user did not tell me this.", "You have not told me that.")
    else:
        talk.reply(f"The user told me: {copied(value)}.", reply.format(copied(value)))


def tell_fact(talk: Talk) -> None:
    known = {f.key for f in talk.stated}
    fresh = [f for f in facts.distinct(talk.rng, 3) if f.key not in known]
    fresh = fresh[:talk.rng.choice([1, 1, 2])]
    if not fresh:
        return ask_fact(talk)
    talk.stated += fresh
    talk.out.messages.append(Message("user", "".join(f.line for f in fresh).rstrip("\n")))
    talk.reply("The user tells me something to remember.", "I will remember it.")


def ask_fact(talk: Talk) -> None:
    if not talk.stated:
        return tell_fact(talk)
    fact = talk.rng.choice(talk.stated)
    value = fact.answer.strip().rstrip(".")
    talk.user(fact.chat_ask)
    talk.reply(f"The user asks for {copied(fact.key)}. I remember: {copied(value)}.",
               f"{fact.chat_lead} {copied(value)}.")


def story(talk: Talk) -> None:
    rng = talk.rng
    hero, thing = rng.choice(lex.NAMES), rng.choice(lex.THINGS)
    about = rng.choice([hero, f"{hero} and {words.article(thing)}", words.article(thing), ""])
    if about:
        talk.user(pick(rng, "Tell me a story about {}.|Tell me a story about {}."
                            "|Please tell a story about {}.|I want a story about {}."
                            "|Can you tell me a story about {}?").format(about))
        reasoning = f"The user wants a story about {copied(about)}."
    else:
        talk.user(pick(rng, "Tell me a story.|Tell me another story.|A story, please."
                            "|Can you tell me a story?"))
        reasoning = "The user wants a story."
    talk.reply(reasoning, stories.story(rng, hero, thing).rstrip("\n"))


def offered_story(talk: Talk) -> None:
    """The reply offers a story, and the user wants it."""
    offers = [t for t in SMALL_TALK if "story." in t[2] or "Shall" in t[2]]
    said, reasoning, reply = talk.rng.choice(offers)
    talk.user(pick(talk.rng, said))
    talk.reply(reasoning, reply)
    talk.user(pick(talk.rng, "Yes, please.|Yes|Please do.|Yes, do that.|Good idea."))
    talk.reply("The user wants a story.", stories.story(talk.rng).rstrip("\n"))


def errand(talk: Talk, kind: str) -> None:
    """One wish: the call, its result and the reply; or the reply that no tool fits."""
    tool = talk.tools.get(kind)
    wish = tool_turns.KINDS[kind](talk.rng, tool)
    talk.user(wish.wish)
    if tool is None:
        talk.reply(f"The user wants {wish.topic}. No tool does this.", NO_TOOL)
        return
    talk.reply(f"The user wants {wish.topic}. I call {copied(tool.name)}.", "",
               (tool_turns.call(wish, tool),))
    talk.result(wish.result)
    talk.reply("I have the result.", wish.reply)


def two_errands(talk: Talk) -> None:
    """Two wishes in one message, served by two calls in one block."""
    kinds = [k for k in TOYS if k in talk.tools]
    if len(kinds) < 2:
        return errand(talk, talk.rng.choice(TOYS))
    pair = talk.rng.sample(kinds, 2)
    wishes = [tool_turns.KINDS[k](talk.rng, talk.tools[k]) for k in pair]
    tools = [talk.tools[k] for k in pair]
    talk.user(" ".join(w.wish for w in wishes))
    talk.reply(f"The user wants {wishes[0].topic} and {wishes[1].topic}. I call "
               f"{copied(tools[0].name)} and {copied(tools[1].name)}.", "",
               tuple(tool_turns.call(w, t) for w, t in zip(wishes, tools)))
    for wish in wishes:
        talk.result(wish.result)
    talk.reply("I have the results.", " ".join(w.reply for w in wishes))


def some_errand(talk: Talk) -> None:
    """Mostly for a tool that is there; sometimes for one that is not."""
    here = list(talk.tools)
    away = [k for k in tool_turns.KINDS if k not in talk.tools]
    absent = not here or (away and talk.rng.random() < 0.2)
    errand(talk, talk.rng.choice(away if absent else here))


def exchange(talk: Talk) -> None:
    skills = {small_talk: 3, introduction: 2, what_name: 1, about_user: 4, tell_fact: 3,
              ask_fact: 4, story: 2, offered_story: 1, some_errand: 1}
    if talk.tools:
        skills = {small_talk: 2, introduction: 1, what_name: 1, about_user: 1, tell_fact: 1,
                  ask_fact: 1, story: 1, some_errand: 12, two_errands: 2}
    talk.rng.choices(list(skills), list(skills.values()))[0](talk)


def begin(rng: random.Random, tools: dict[str, Tool]) -> Talk:
    out = Conversation(tools=[t.schema for t in tools.values()], thinking=rng.random() < 0.4)
    out.most_effort = out.thinking and rng.random() < 0.1
    if rng.random() < 0.3:
        out.system = words.system_text(rng)
    return Talk(rng, tools, out)


def conversation(rng: random.Random, exchanges: int, with_tools: bool) -> Conversation:
    talk = begin(rng, draw(rng) if with_tools else {})
    for _ in range(exchanges):
        exchange(talk)
    return talk.out
