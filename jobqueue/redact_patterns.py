"""What secrets look like in free text. Repetitions are possessive or bounded: no text is slow."""

import re

# HTTPToken2 -> HTTP, Token, 2; digits end a word; anything that is no letter parts two.
WORD = re.compile(r"[A-ZÄÖÜ]+(?![a-zäöüß])|[A-ZÄÖÜ]?[^\W\d_A-ZÄÖÜ]+|\d+")

# Between a name and its value: = or : or =>, a blank before a quote, a comma in a list of pairs.
BETWEEN = r"""
    (?P<between>
        \\?["']? [ \t]{0,8} (?: => | [:=]=? ) [ \t]{0,8}
      | [ \t]{1,8} (?= ["'] )
      | \\?["'] , [ \t]{0,8} (?= [bu]? \\?["'] ) )
"""
# Quoted (perhaps inside of a quoted text), opened by a bracket, or up to the next blank.
VALUE = re.compile(r"""(?mx)
    (?P<open> [bru]{0,2} (?P<quote> \\?["'] ) )
    (?: (?! (?P=quote) ) (?: \\. | [^\n] ) )* (?P=quote)?
  | [\[{(] [^\n]*
  | [^\s&"']+? (?= [\])}>,;.:"'\\]{0,4} (?: [\s&] | $ ) )
  | [^\s&]+
""")
RUN = re.compile(r"[\w.-]*+")  # of a name's characters
NAME = re.compile(rf"(?x) (?P<name> [\w.-]++ ) {BETWEEN}")
BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
INDENT = 20  # blanks before a name that still begins its line

# 13 to 19 digits, perhaps in groups: also found under an innocent key.
CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)")

_PREFIXES = r"""
    gh[opsur]_[A-Za-z0-9]{20,255} | github_pat_\w{20,255} | glpat-[\w-]{16,255}
  | [srp]k_(?:live|test)_[A-Za-z0-9]{10,255} | whsec_[A-Za-z0-9+/=]{16,255}
  | sk-[\w-]{20,255} | xox[abeoprs]-[\w-]{10,255} | (?:AKIA|ASIA)[A-Z0-9]{16}
  | AIza[\w-]{35} | ya29\.[\w-]{20,255} | SG\.[\w-]{16,64}\.[\w-]{16,64}
  | npm_[A-Za-z0-9]{20,255} | pypi-[\w-]{20,255} | hf_[A-Za-z0-9]{20,255}
  | dop_v1_[a-f0-9]{20,255} | shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{20,255}
"""
# Each with what must be somewhere in the folded text, and with its replacement, in which COVER
# stands for the cover. Where a text ends it may have been cut.
KNOWN_SECRETS: list[tuple[tuple[str, ...], re.Pattern[str], str]] = [
    # A password in an address, which may hold slashes and @. A port is no password, but before an
    # @ only the web's addresses have one.
    (
        ("://",),
        re.compile(
            r"((?:https?|wss?)://[^\s:/@\[]{0,200}:)(?!\d{1,5}(?:[/?#\s]|$))"
            r"(?:[^\s\"'<>]{1,500}(?=@)|[^\s\"'<>@]{1,500}\Z)"
        ),
        r"\1COVER",
    ),
    (
        ("://",),
        re.compile(
            r"(?<!http)(?<!https)(?<!ws)(?<!wss)(://(?:[^\s:/@\[]{0,200}@)?[^\s:/@\[]{0,200}:)"
            r"(?:[^\s\"'<>]{1,500}(?=@)|(?!\d{1,5}(?:[/?#\s]|$))[^\s\"'<>@]{1,500}\Z)"
        ),
        r"\1COVER",
    ),
    (
        ("private key",),
        re.compile(
            r"-----BEGIN ([A-Z ]{0,40}PRIVATE KEY)-----(?:(?!-----END)[\s\S]){0,20000}+"
            r"(?:-----END [A-Z ]{0,40}-----)?"
        ),
        r"-----BEGIN \1----- COVER",
    ),
    (
        ("eyj",),
        re.compile(r"\beyJ[\w-]{8,4096}+(?:\Z|\.[\w-]{8,8192}+(?:\Z|\.[\w-]{0,4096}+))"),
        "COVER",
    ),
    (
        (
            *("gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "k_live_"),
            *("k_test_", "whsec_", "sk-", "xox", "akia", "asia", "aiza", "ya29.", "sg."),
            *("npm_", "pypi-", "hf_", "dop_v1_", "shpat_", "shpca_", "shppa_", "shpss_"),
        ),
        re.compile(rf"(?x) (?<![\w-]) (?:{_PREFIXES})"),
        "COVER",
    ),
    (
        ("bearer", "basic"),
        re.compile(r"(?i)(\b(?:bearer|basic)[ ]+)[\w.~+/=-]{16,}+"),
        r"\1COVER",
    ),
    # A header's value may hold blanks: unless it is quoted, the rest of the line is covered.
    (
        ("authorization", "cookie"),
        re.compile(r"(?i)((?:authorization|cookie)[ \t]{0,8}[:=][ \t]{0,8})[^\s\"'\\\[{(][^\n]*+"),
        r"\1COVER",
    ),
    # curl -u name:password, also as a list of words
    (
        ("-u", "--proxy-u"),
        re.compile(
            r"((?:^|[\s\[(,\"'])(?:-u|--user|--proxy-user)[\"']?[ =,]{0,3}[\"']?"
            r"[^\s:\"',\])]{1,200}:)[^\s\"',\])]{1,500}+"
        ),
        r"\1COVER",
    ),
    # mysql --password hunter2
    (
        ("--",),
        re.compile(
            r"(?i)((?:^|\s)--[\w-]{0,40}(?:password|passwd|passphrase|token|secret|key)[ ]{1,8})"
            r"(?!-)[^\s]{1,500}+"
        ),
        r"\1COVER",
    ),
]
