"""Small talk: format strings, as those of stories.py are."""

from __future__ import annotations

# (what the user says, what the assistant says); both share their slots.
CHATTER: tuple[tuple[str, str], ...] = (
    ("Hello.", "Hello. How are you today?"),
    ("Hi.", "Hello. It is good to hear from you."),
    ("Hey.", "Hello. What can I do for you?"),
    ("Thanks.", "You are welcome."),
    ("Okay.", "Good. Tell me when you need something."),
    ("Yes.", "Very well. What shall we talk about?"),
    ("No.", "All right. Then let us talk about something else."),
    ("Goodbye.", "Goodbye. I will remember what you told me."),
    ("Bye.", "Goodbye. Come back soon."),
    ("What is your name?", "I am called Mneme. I am a small model with a long memory."),
    ("Can you help me?", "I can remember what you tell me, and I can tell little stories."),
    ("I have a question.", "Go on, please. I will answer if I can."),
    ("Good %(daytime)s.", "Good %(daytime)s. What can I do for you?"),
    ("Who are you?", "I am a small model with a long memory. I remember what you tell me."),
    ("What can you do?", "I remember what you tell me, and I can tell little stories."),
    ("How are you?", "I am well, thank you. It is a %(weather)s day, and I like to talk with you."),
    ("Thank you very much.", "You are welcome. I am glad that I could help."),
    ("That was very kind of you.", "It was a pleasure. Just ask me again when you need something."),
    ("I am %(mood)s today.", "Thank you for telling me. I hope that the day will be good for you."),
    ("It is %(weather)s outside.", "Then it may be a good day for a cup of %(drink)s and a book."),
    (
        "What should I wear when it is %(weather)s?",
        "On a %(weather)s day I would take a %(colour)s coat and good shoes. A scarf may help as well.",
    ),
    (
        "How do I make soup with %(vegetable)s?",
        "Cut the %(vegetable)s into small pieces and boil them with salt and a little %(herb)s. After half "
        "an hour the soup is ready.",
    ),
    (
        "How can I keep %(herb)s fresh?",
        "Put the %(herb)s into a glass of water, or wrap it in a damp cloth. It will stay fresh for some "
        "days.",
    ),
    (
        "What can I bake with %(fruit)s?",
        "You can bake a cake. Mix flour, eggs, butter and sugar, put the %(fruit)s on top and bake it until "
        "it is brown.",
    ),
    (
        "When should I plant %(flower)s?",
        "The best time for %(flower)s is spring. They need sun, good soil and water %(weekly)s.",
    ),
    (
        "How do I get from %(place)s to %(place2)s?",
        "Walk past %(place)s and then turn %(side)s. After %(number)s minutes you will see %(place2)s in "
        "front of you.",
    ),
    (
        "Should I visit %(city)s or %(city2)s?",
        "Both are worth a visit. In %(season)s I would go to %(city)s, and in %(month)s to %(city2)s.",
    ),
    (
        "My %(animal)s does not want to eat.",
        "Give it fresh water and some rest. If it does not eat tomorrow, you should ask a doctor for "
        "animals.",
    ),
    (
        "I saw a %(colour)s %(animal)s near %(place)s.",
        "A %(colour)s %(animal)s is a rare sight. I wonder where it came from.",
    ),
    (
        "Today I bought a %(size)s %(thing)s.",
        "That sounds nice. A %(size)s %(thing)s is useful in every house. Where will you put it?",
    ),
    (
        "I will put the %(thing)s on the %(furniture_any)s.",
        "That is a good place for a %(thing)s. You will always find it there.",
    ),
    (
        "How do I clean a %(colour)s %(thing)s?",
        "Use warm water and a soft cloth, and work %(speed)s. Let the %(thing)s dry before you use it again.",
    ),
    (
        "Can you give me some advice for my garden?",
        "Plant %(vegetable)s next to %(flower)s, and water them in the morning. Pull out the weeds "
        "%(weekly)s.",
    ),
    (
        "What do I need to repair a %(gadget)s?",
        "You need a %(tool)s, a little glue and much patience. Do not forget to clean the %(tool)s "
        "afterwards.",
    ),
    (
        "Which %(tool)s should I buy?",
        "Take one with a good handle. A %(tool)s that lies well in the hand is worth its money.",
    ),
    (
        "What do you know about %(season)s?",
        "In %(season)s the days change, and so do the colours of the trees. Many people like to walk in the "
        "forest then.",
    ),
    (
        "I cannot sleep.",
        "Drink a cup of warm milk, open the window and think of %(place)s on a %(weather)s %(daytime)s.",
    ),
    (
        "Shall we play a game?",
        "Gladly. Think of an animal, and I will guess. Is it a %(animal)s? Or perhaps a %(animal2)s?",
    ),
    (
        "It was a %(animal)s.",
        "Then I was lucky. A %(animal)s is easy to guess, because many people like it.",
    ),
    (
        "I have to travel to %(city)s on %(weekday)s.",
        "Have a good journey. Take the early train, and bring a book and something to drink with you.",
    ),
    (
        "The train to %(city)s was late.",
        "I am sorry to hear that. I hope that you had something to read while you waited.",
    ),
    (
        "My %(family)s will visit me on %(weekday)s.",
        "How nice. You could bake a cake with %(fruit)s and make some %(drink)s.",
    ),
    (
        "What can I give my %(family)s as a present?",
        "A %(colour)s %(thing)s would be nice, or a bunch of %(flower)s. A letter makes everybody happy, "
        "too.",
    ),
    (
        "I want to learn %(game)s.",
        "That is a good idea. Begin with the rules, play %(weekly)s and do not be sad when you lose.",
    ),
    (
        "I have read a book about %(city)s.",
        "That must have been interesting. Did it speak of %(place)s as well?",
    ),
    (
        "What happened at %(place)s on %(weekday)s?",
        "A %(kind)s %(worker)s lost a %(thing)s there, and a %(animal)s found it again. Everybody was "
        "%(mood)s.",
    ),
    (
        "I have to write a letter to %(who)s.",
        "Begin with a greeting, tell %(who)s what happened in %(month)s, and end with a kind word.",
    ),
    (
        "I met %(who)s at %(place)s.",
        "What a nice surprise. I hope that %(who)s was well and that you had time to talk.",
    ),
    (
        "%(who)s and %(who2)s went to %(place)s together.",
        "I hope that they enjoyed it. On a %(weather)s day %(place)s must be beautiful.",
    ),
    (
        "%(who)s told me a joke about a %(animal)s.",
        "I like jokes about animals. Was it a %(kind)s %(animal)s?",
    ),
    (
        "Let us talk about something else.",
        "Gladly. We could talk about %(city)s, about %(flower)s or about the weather in %(month)s.",
    ),
    (
        "Do you like %(food)s?",
        "I cannot eat, but many people like %(food)s, above all with %(vegetable)s and a glass of %(drink)s.",
    ),
    (
        "Do you like music?",
        "I cannot hear it, but I like to read about it. A song about the sea would please me.",
    ),
    (
        "Say something nice.",
        "You ask good questions, and it is a pleasure to talk with you on this %(daytime)s.",
    ),
    (
        "What shall we eat today?",
        "How about %(food)s with %(vegetable)s? Afterwards you could have some %(fruit)s.",
    ),
    (
        "I have found a %(thing)s in %(room)s.",
        "Somebody may be looking for it. Ask your %(family)s before you keep the %(thing)s.",
    ),
    (
        "There is a noise in %(room)s.",
        "It may only be the wind, or a %(animal)s. Take a lamp and look %(speed)s.",
    ),
    (
        "Where is %(place)s?",
        "It is not far from %(place2)s. Turn %(side)s at the %(tree)s and walk for %(number)s minutes.",
    ),
    (
        "Is it far to %(city)s?",
        "By train it takes about %(number)s hours. On a %(weather)s day the view from the window is "
        "wonderful.",
    ),
    (
        "The soup does not taste of anything.",
        "Add some salt and a little %(herb)s, and let it boil for %(number)s minutes more. That should help.",
    ),
    (
        "How long must I boil %(vegetable)s?",
        "It depends on their size. Try one after %(number)s minutes. When it is soft, the %(vegetable)s are "
        "ready.",
    ),
    (
        "My %(tree)s has lost its leaves.",
        "In autumn that is nothing to worry about. In summer it may need more water, above all when it is "
        "young.",
    ),
    (
        "How can I learn %(lesson)s?",
        "Read a little %(weekly)s, write down what is new, and tell it to your %(family)s. What you can "
        "explain you have understood.",
    ),
    (
        "The %(worker)s was here and asked for you.",
        "Thank you. If the %(worker)s comes again, please say that I am always here.",
    ),
    (
        "What is made of %(material)s?",
        "Many things are made of %(material)s: a %(thing)s, for example, or a part of an old "
        "%(furniture_any)s.",
    ),
    (
        "My %(gadget)s is broken.",
        "That is a pity. Perhaps the %(worker)s near %(place)s can repair it, or you buy a new one at the "
        "market.",
    ),
    (
        "I would like to paint a picture.",
        "Begin with something simple, perhaps some %(fruit)s on a %(furniture_any)s. Take %(colour)s and "
        "%(colour2)s, and do not hurry.",
    ),
    (
        "What is the best time for a walk?",
        "Early in the morning, when the air is fresh. In %(season)s I would walk to %(place)s and back.",
    ),
    (
        "We heard %(sound)s in the night.",
        "Perhaps it came from %(place)s. At night every sound seems louder than it is.",
    ),
    (
        "Who lives near %(place)s?",
        "A %(kind)s %(worker)s lives there with a %(animal)s and %(number)s hens. You can hear them in the "
        "morning.",
    ),
    (
        "What does a %(worker)s do all day?",
        "A %(worker)s gets up early, works with patience, and is %(mood)s in the evening. I think that it "
        "is a good life.",
    ),
    (
        "Tell me something about %(city)s.",
        "Many people travel to %(city)s in %(season)s. They look at the old houses, eat %(food)s and write "
        "letters home.",
    ),
    (
        "%(who)s has bought a %(animal)s.",
        "That will be a lot of work, but also a lot of fun. Where will the %(animal)s sleep, in %(room)s?",
    ),
    (
        "Yesterday %(who)s and I played %(game)s.",
        "Did you win? To play %(game)s with %(who)s must have been a pleasure.",
    ),
    (
        "Count the %(things)s with me.",
        "One, two, three, four, five. There are five %(things)s, and all of them are %(colour)s.",
    ),
)
GREETINGS = 20  # the first ones, which shall be rare
