"""What a school reads, in English and in French: students, teachers, who looks after rosters.

Sentences for other administrators and for developers stay English: they are looked for on the web,
and compared between sites.  `essaim.model.messages` has further parts of the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from essaim.model.messages.access import ACCESS
from essaim.model.messages.accounts import ACCOUNTS
from essaim.model.messages.classroom import CLASSROOM
from essaim.model.messages.student import STUDENT

LANGUAGES = ("en", "fr")

#: Key → (English, French).  `{fields}` are the same in both.
WORDS: Mapping[str, tuple[str, str]] = {
    **ACCESS,
    **ACCOUNTS,
    **CLASSROOM,
    **STUDENT,
    # -- command line: renting
    "rent.granted": (
        "{lease}: {count} machine(s) yours until {until}",
        "{lease} : {count} machine(s) à vous jusqu'au {until}",
    ),
    "rent.preparing": (
        "{lease}: preparing your access",
        "{lease} : préparation de votre accès",
    ),
    "rent.queued": (
        "{lease}: waiting, number {position} in the queue; {eta}",
        "{lease} : en attente, numéro {position} dans la file ; {eta}",
    ),
    "rent.eta": ("about {duration} to go", "encore {duration} environ"),
    "rent.eta_unknown": (
        "nobody can say how long yet",
        "nul ne peut dire encore combien de temps",
    ),
    "rent.enter": ("log in with:", "connectez-vous avec :"),
    "rent.left_queued": (
        "{lease} stays queued and will be granted in its turn.",
        "{lease} reste dans la file et sera accordée à son tour.",
    ),
    "rent.left_preparing": (
        "{lease} is yours and goes on being prepared.",
        "{lease} est à vous ; sa préparation continue.",
    ),
    "rent.look": ("look: essaim leases {lease}", "voir : essaim leases {lease}"),
    "rent.give_up": (
        "give it up: essaim release {lease}",
        "y renoncer : essaim release {lease}",
    ),
    "rent.failed": ("{lease} failed: {reason}", "{lease} a échoué : {reason}"),
    "rent.key_made": (
        "made a key for you: {path}",
        "une clé a été créée pour vous : {path}",
    ),
    "extend.done": ("{lease} lasts until {until}", "{lease} dure jusqu'au {until}"),
    "release.done": (
        "{lease} is given back; what you left on it is being removed",
        "{lease} est rendue ; ce que vous y avez laissé est en cours d'effacement",
    ),
    "release.over": ("{lease} is over", "{lease} est terminée"),
    "release.held": (
        "{lease} failed and is kept for you until {until}; release it again to give it back",
        "{lease} a échoué et vous est gardée jusqu'au {until} ; refaites release pour la rendre",
    ),
    "rent.again": (
        "it may have been rented all the same; the same command again does not rent twice",
        "la location a peut-être eu lieu ; la même commande ne louera pas deux fois",
    ),
    "access.key_changed": (
        "the gateway {host} has another host key than before, says the server",
        "la passerelle {host} a une autre clé qu'avant, dit le serveur",
    ),
    "lease.none": ("{lease} is no lease", "{lease} n'est pas une location"),
    "leases.look": ("essaim leases lists yours", "essaim leases donne la liste des vôtres"),
    "leases.headings": (
        "LEASE|STATE|MACHINES|ASKED|UNTIL|LEFT|WHOSE",
        "LOCATION|ÉTAT|MACHINES|DEMANDÉE|JUSQU'AU|RESTE|DE",
    ),
    "visits.headings": (
        "VISIT|LASTED|FROM|KEY|BYTES IN|BYTES OUT",
        "VISITE|DURÉE|DEPUIS|CLÉ|OCTETS REÇUS|OCTETS ENVOYÉS",
    ),
    "lease.times": ("asked {asked}, until {until}", "demandée {asked}, jusqu'au {until}"),
    "lease.queued": ("queued", "en attente"),
    "lease.granted": ("granted", "accordée"),
    "lease.active": ("active", "active"),
    "lease.migrating": ("moving", "en déplacement"),
    "lease.ending": ("ending", "se termine"),
    "lease.ended": ("ended", "finie"),
    "lease.failed": ("failed", "échouée"),
    "leases.none": (
        "no leases; rent a machine with: essaim rent",
        "aucune location ; louez une machine avec : essaim rent",
    ),
    # -- gateway: shown in both languages, to whoever logs in
    "gateway.full": (
        "the gateway is full: try again later",
        "la passerelle est pleine : réessayez plus tard",
    ),
    "gateway.unable": (
        "the gateway cannot do this now: try again",
        "la passerelle ne peut pas le faire maintenant : réessayez",
    ),
    "gateway.stopping": (
        "the gateway is stopping: log in again",
        "la passerelle s'arrête : reconnectez-vous",
    ),
    "gateway.ended": ("lease {lease} has ended", "la location {lease} est terminée"),
    "gateway.expired": ("lease {lease} has expired", "la location {lease} a expiré"),
    "gateway.over": (
        "lease {lease} has ended or moved",
        "la location {lease} est terminée ou a été déplacée",
    ),
    "gateway.key": (
        "lease {lease} has another key now",
        "la location {lease} a maintenant une autre clé",
    ),
    "gateway.unheld": (
        "lease {lease}: no machine holds it now: try again in a moment",
        "location {lease} : aucune machine ne la porte maintenant : réessayez dans un instant",
    ),
    "gateway.preparing": (
        "lease {lease}: its machine is being prepared: try again in a moment",
        "location {lease} : sa machine se prépare : réessayez dans un instant",
    ),
    "gateway.moving": (
        "lease {lease}: its machine was lost; another is being prepared: try again in a moment",
        "location {lease} : sa machine est perdue ; une autre se prépare : réessayez bientôt",
    ),
    "gateway.lost": (
        "lease {lease} has lost its machine: log in again",
        "la location {lease} a perdu sa machine : reconnectez-vous",
    ),
    "gateway.moved": (
        "lease {lease} has moved to another machine: log in again",
        "la location {lease} est passée sur une autre machine : reconnectez-vous",
    ),
    "gateway.broken": (
        "the connection to the machine of lease {lease} was lost: log in again",
        "la connexion à la machine de la location {lease} est perdue : reconnectez-vous",
    ),
    "gateway.cut_off": (
        "the connection to the machine was lost",
        "la connexion à la machine est perdue",
    ),
    "gateway.refuses": ("the machine refuses: {why}", "la machine refuse : {why}"),
    "gateway.stranger": (
        "the machine of lease {lease} did not prove who it is: ask an operator",
        "la machine de la location {lease} n'a pas prouvé son identité : voyez un opérateur",
    ),
    "gateway.unreached": (
        "the machine of lease {lease} cannot be reached now: try again ({why})",
        "la machine de la location {lease} est injoignable : réessayez ({why})",
    ),
    "gateway.forwarding": (
        "this lease has no port forwarding",
        "cette location ne transmet aucun port",
    ),
    "gateway.own_ports": (
        "only the machine's own ports",
        "seulement les ports de la machine elle-même",
    ),
    # -- students' own machines: the API's problems, in both languages
    "seat.unknown": (
        "there is no student {login} on {roster}, or they are not yours to see",
        "pas d'étudiant {login} dans {roster}, ou vous n'y avez pas accès",
    ),
    "seat.no_roster": (
        "there is no roster {roster}, or you do not teach it",
        "pas de promotion {roster}, ou vous ne l'enseignez pas",
    ),
    "seat.code": (
        "this code is not known, or was used before: ask your teacher for another",
        "ce code est inconnu ou a déjà servi : demandez-en un autre à votre enseignant",
    ),
    "seat.busy": (
        "{machine}: something is being done with it ({doing}): try again in a moment",
        "{machine} : une opération est en cours ({doing}) : réessayez dans un instant",
    ),
    "seat.there": (
        "{machine} is there already; reset makes it anew",
        "{machine} existe déjà ; reset la refait à neuf",
    ),
    "seat.retired": (
        "{machine} was retired: ask your teacher to put you back on the roster",
        "{machine} a été retirée : demandez à votre enseignant de vous réinscrire",
    ),
    "seat.none": (
        "{machine} does not exist; create makes it",
        "{machine} n'existe pas ; create la crée",
    ),
    "seat.operators": ("only operators may do this", "réservé aux opérateurs"),
    "seat.most": (
        "{roster}: more than half of its machines would go: say that this is meant",
        "{roster} : plus de la moitié des machines partiraient : confirmez-le",
    ),
    "seat.no_run": (
        "there is no run {run} of {roster}",
        "pas d'exécution {run} de {roster}",
    ),
    "seat.teachers": ("only teachers may do this", "réservé aux enseignants"),
    "seat.quota": (
        "you may have {most} machine(s) at a time",
        "vous pouvez avoir {most} machine(s) à la fois",
    ),
    "seat.label": (
        "a snapshot's name has small letters, digits and dashes, and begins with a letter",
        "le nom d'un instantané : minuscules, chiffres et tirets, une lettre d'abord",
    ),
    "seat.label_taken": (
        (
            "{machine} has a snapshot {label} already: "
            "choose another label, or remove that snapshot first"
        ),
        (
            "{machine} a déjà un instantané {label} : "
            "choisissez un autre nom, ou supprimez d'abord celui-là"
        ),
    ),
    "seat.no_label": (
        "{machine} has no snapshot {label}",
        "{machine} n'a pas d'instantané {label}",
    ),
    "seat.snapshots": (
        "{machine}: {most} snapshots are allowed; forget one first",
        "{machine} : {most} instantanés au plus ; oubliez-en un d'abord",
    ),
    "seat.keeps_none": (
        "{machine} cannot keep snapshots where it is",
        "{machine} ne peut pas garder d'instantané là où elle est",
    ),
    # -- students' own machines: the command line
    "seat.progress": ("{done} of {total} done {waits}", "{done} sur {total} {waits}"),
    "seat.partly": (
        "{failed} of {total} failed: essaim mine class {roster} retry",
        "{failed} échecs sur {total} : essaim mine class {roster} retry",
    ),
    "seat.headings": (
        "MACHINE|STATE|ADDRESS|SINCE|NOW",
        "MACHINE|ÉTAT|ADRESSE|DEPUIS|EN COURS",
    ),
    "seat.nothing": (
        "you have no machine; claim yours with: essaim mine claim CODE",
        "vous n'avez pas de machine ; prenez la vôtre avec : essaim mine claim CODE",
    ),
    "seat.which": (
        "which one? you have {machines}",
        "laquelle ? vous avez {machines}",
    ),
    "seat.write": (
        "write ROSTER/LOGIN, such as promo/{login}",
        "écrivez PROMOTION/IDENTIFIANT, par exemple promo/{login}",
    ),
    "seat.no_class": (
        "you teach no class: an operator says who does (essaim students teachers)",
        "vous n'enseignez aucune promotion : un opérateur s'en charge (essaim students teachers)",
    ),
    "seat.no_snapshots": (
        "{machine}: nothing was kept yet; essaim mine snapshot does",
        "{machine} : rien n'est gardé ; essaim mine snapshot garde le disque",
    ),
    "seat.claimed": ("{machine} is yours", "{machine} est à vous"),
    "seat.lost": (
        "what is on the disk of {machine} is lost. Go on?",
        "le contenu du disque de {machine} sera perdu. Continuer ?",
    ),
    "seat.kept": ("{machine}: kept as {label}", "{machine} : gardée sous {label}"),
    "seat.coming": ("being made", "en création"),
    "seat.ready": ("ready", "prête"),
    "seat.failed": ("failed", "en échec"),
    "seat.stuck": ("needs a person", "attend une personne"),
    "seat.retired_state": ("retired until {until}", "retirée, gardée jusqu'au {until}"),
    "seat.without": ("given back", "rendue"),
    "seat.on": ("on", "allumée"),
    "seat.off": ("off", "éteinte"),
    "seat.absent": ("absent", "absente"),
    # -- shown at login on a rented machine
    "machine.moved": (
        "Your machine was lost; since then you are on {machine}, at the same address.",
        "Votre machine a été perdue ; vous êtes désormais sur {machine}, à la même adresse.",
    ),
    "machine.unrestored": (
        "Your files could not be brought along; ask an operator for the copy.",
        "Vos fichiers n'ont pas pu suivre ; demandez la copie à un opérateur.",
    ),
    "machine.ends": (
        "This lease ends in {minutes} min, at {at}. To keep it: essaim extend {lease}",
        "Cette location finit dans {minutes} min, à {at}. Pour la garder : essaim extend {lease}",
    ),
}

#: The first tag of LANG (fr_FR.UTF-8) or of Accept-Language (fr-FR,fr;q=0.9) that we speak.
_TAG = re.compile(r"(?<![a-zA-Z])(en|fr)(?![a-zA-Z])", re.IGNORECASE)


def language(text: str) -> str:
    """The language a locale or an Accept-Language header asks for first; English by default."""
    found = _TAG.search(text)
    return found[1].lower() if found else LANGUAGES[0]


def words(key: str, language: str, /, **fields: Any) -> str:
    """One sentence in one language."""
    return WORDS[key][LANGUAGES.index(language)].format(**fields)


def both(key: str, /, **fields: Any) -> str:
    """The sentence in English, and below it in French: for readers whose language is unknown."""
    return "\n".join(words(key, each, **fields) for each in LANGUAGES)


def one(text: str, language: str) -> str:
    """What `both` says, in one language; any other text as it is."""
    lines = text.split("\n")
    return lines[LANGUAGES.index(language)] if len(lines) == len(LANGUAGES) else text
