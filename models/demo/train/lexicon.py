"""The small world of the demo model: every word list that stories and facts draw from."""

GIRLS = """Mira Anna Lena Nora Ruth Ivy Rosa Ella Clara Dora Emma Fay Gwen Hana Ida Jane Kira Lily
Maya Nina Olga Petra Sara Tess Una Vera Wanda Zoe""".split()
BOYS = """Tom Ben Sam Leo Max Finn Karl Otto Hugo Ivan Jack Kurt Liam Mark Nils Omar Paul Rolf Sven
Theo Ugo Viktor Will Yuri Zack Adam Bruno Dan""".split()
NAMES = GIRLS + BOYS

ANIMALS = "fox hawk bear rabbit horse goat duck mouse frog crow dog cat hen wolf deer".split()
THINGS = """lantern basket hammer ribbon button candle mirror whistle blanket kettle ladder needle
pencil pillow rope saddle spoon trumpet shovel violin wagon bell book coin drum feather flute
glove hat jar key kite lamp map pearl ring shoe stone sword violet""".split()
VALUES = THINGS + """apple bread butter cheese cherry honey lemon melon onion pepper plum salt soup
sugar anchor arrow bottle bridge castle cloud copper crystal desert dragon eagle engine falcon
forest garden hill island ivory jungle lake marble meadow moon mountain ocean palace planet rain
river rocket silver snow storm summer sunset temple thunder tiger tower valley velvet window
winter""".split()
COLORS = "red blue green white black yellow brown grey pink golden".split()
BOXES = "box door chest cabin drawer gate trunk barn".split()
PLACES = """oak bench stairs mat roof wall well stove table bed carpet clock fence hedge statue
bridge tree tower shelf rug""".split()
TOWNS = """Arbon Belmont Corvo Dunmore Eldon Farley Grimsby Halden Irvine Jarrow Kelso Lisbon Milton
Norwick Orford Preston Quinby Ripley Selby Tarbet Upton Verdun Weston Yarrow""".split()
PETS = """Biscuit Pepper Shadow Ginger Muffin Patch Rusty Smoky Sunny Tiger Coco Daisy Lucky Misty
Oscar Ruby Simba Toffee""".split()
SETTINGS = """village by the sea|little house near the forest|farm behind the hill|town with a tall
tower|cabin beside the lake|valley full of flowers|street with many shops|castle on the mountain
""".replace("\n", " ").strip().split("|")
WEATHER = """The sun was warm|A soft wind blew|It was a cold morning|Rain had fallen all night|The
sky was clear and blue|Snow lay on the ground|The leaves were turning yellow|It was the first day of
summer""".replace("\n", " ").split("|")
FOODS = "bread cheese soup honey cake apples plums cherries".split()
