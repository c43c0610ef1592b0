"""What a page of the site links to."""

import html.parser


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src", "srcset", "data", "action", "poster") and value:
                self.links.append((tag, value))
            if name == "id":
                self.ids.add(value)
