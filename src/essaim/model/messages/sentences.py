"""Errors, hints and reasons that are written in English where they arise, and their French.

They are raised far below the command line, and many are kept in the journal: who reads them decides
the language.  `translated` knows a sentence by its words; fields in braces stand for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

#: English → French, with the same fields.
SENTENCES: Mapping[str, str] = {
    # -- near spellings
    "did you mean {word}?": "vouliez-vous dire {word} ?",
    "there are: {names}": "il y a : {names}",
    "images: {names}": "images : {names}",
    "sizes: {names}": "tailles : {names}",
    # -- rosters
    "no roster called {name}": "aucune promotion ne s'appelle {name}",
    "make one: essaim students apply FILE.csv": "créez-la : essaim students apply FICHIER.csv",
    "no student {login} on {name}": "personne ne s'appelle {login} dans {name}",
    "no student {login}": "personne ne s'appelle {login}",
    "site {site} names no directory": "le site {site} n'indique pas d'annuaire",
    "directory: in its site file; --site SITE names another site": (
        "directory: dans le fichier du site ; --site SITE indique un autre site"
    ),
    "there is a stack called {name}, and it is no roster": (
        "{name} existe déjà et n'est pas une promotion"
    ),
    "choose another --name, or essaim students remove {name} first": (
        "choisissez un autre --name, ou d'abord essaim students remove {name}"
    ),
    "choose another --name": "choisissez un autre --name",
    "roster {name} lives on site {site} in {cidr}, not on {other} in {wanted}": (
        "la promotion {name} est sur le site {site} dans {cidr}, pas sur {other} dans {wanted}"
    ),
    "{machine} has a snapshot {label} already: "
    "choose another label, or remove that snapshot first": (
        "{machine} a déjà un instantané {label} : "
        "choisissez un autre nom, ou supprimez d'abord celui-là"
    ),
    "{name}: all these machines are being worked on": (
        "{name} : une opération est déjà en cours sur toutes ces machines"
    ),
    "wait for it: essaim students list": "attendez-en la fin : essaim students list",
    "{name}: its machines are being worked on": (
        "{name} : une opération est déjà en cours sur ses machines"
    ),
    "wait for it": "attendez-en la fin",
    "nobody is called {who}": "personne ne s'appelle {who}",
    "a code makes somebody without an account a teacher: essaim users invite --teaches {name}": (
        "un code fait enseignant quelqu'un qui n'a pas de compte : "
        "essaim users invite --teaches {name}"
    ),
    "{site}: all {count} addresses of the roster's network are taken": (
        "{site} : les {count} adresses du réseau de la promotion sont toutes prises"
    ),
    "widen network.range or network.cidr, or remove what is not needed any more": (
        "élargissez network.range ou network.cidr, ou supprimez ce qui ne sert plus"
    ),
    "{machine} does not have the address {address} any more": (
        "{machine} n'a plus l'adresse {address}"
    ),
    "apply the roster again": "appliquez de nouveau la promotion",
    # -- what a roster's files say
    "no site called {name}": "aucun site ne s'appelle {name}",
    "a site is described in site/<name>.yaml": "un site est décrit dans site/<nom>.yaml",
    "there is no image {name}": "il n'y a pas d'image {name}",
    "there is no size {name}": "il n'y a pas de taille {name}",
    "{text} must be a time": "{text} n'est pas une durée",
    "such as 30d, 12h or 0": "par exemple 30d, 12h ou 0",
    "{name} cannot name a roster": "{name} ne peut pas nommer une promotion",
    "small letters and digits": "minuscules et chiffres",
    "{cidr} has no room for machines": "{cidr} n'a pas de place pour des machines",
    "there is no file {file}": "il n'y a pas de fichier {file}",
    "{file} cannot be read: {why}": "impossible de lire {file} : {why}",
    "the file is empty": "le fichier est vide",
    "its first line says {columns}": "sa première ligne contient {columns}",
    "the first line says {columns}": "la première ligne contient {columns}",
    "the first line names no columns": "la première ligne ne nomme pas les colonnes",
    "put {columns} above it, or those of them you have": (
        "ajoutez au-dessus {columns}, ou celles que vous avez"
    ),
    "unknown column {name}": "colonne inconnue {name}",
    "{near} (# before it leaves it out)": "{near} (un # devant la fait ignorer)",
    "columns are {columns}": "les colonnes sont {columns}",
    "the column {name} is there twice": "la colonne {name} apparaît deux fois",
    "there is no column login": "il n'y a pas de colonne login",
    "{count} values, but {columns} columns": "{count} valeurs pour {columns} colonnes",
    "{cell} stands in a column without a name": "{cell} est dans une colonne sans nom",
    "uid {uid} is not a number of a user": "l'uid {uid} n'est pas un numéro d'utilisateur",
    "{login} is not a login": "{login} n'est pas un identifiant",
    "the login is missing": "l'identifiant manque",
    "small letters, digits, dot, dash, underscore; at most 32": (
        "minuscules, chiffres, point, tiret, souligné ; 32 au plus"
    ),
    "{login} is there twice": "{login} apparaît deux fois",
    "first on line {line}": "d'abord à la ligne {line}",
    "{login} and {other} would have the same machine {machine}": (
        "{login} et {other} auraient la même machine {machine}"
    ),
    "put one of them on another roster": "mettez l'un des deux dans une autre promotion",
    "{mail} is not an address for mail": "{mail} n'est pas une adresse de courriel",
    "home {home} must begin with a slash": "home {home} doit commencer par une barre oblique",
    "{login}: a character that cannot be printed": "{login} : un caractère non imprimable",
    "not CSV: {why}": "ce n'est pas du CSV : {why}",
    'a quotation mark (") is opened here and never closed': (
        'un guillemet (") est ouvert ici et jamais fermé'
    ),
    "not UTF-8 (as {code}?)": "ce n'est pas de l'UTF-8 (plutôt {code} ?)",
    'in Excel: Save As, "CSV UTF-8"; or: iconv -f {code} -t UTF-8 {file} > utf8.csv': (
        "dans Excel : Enregistrer sous, « CSV UTF-8 » ; "
        "ou : iconv -f {code} -t UTF-8 {file} > utf8.csv"
    ),
    # -- times of the week
    "{text} ends in no time of day": "{text} ne finit pas par une heure",
    "{word} is no day": "{word} n'est pas un jour",
    "days are mon tue wed thu fri sat sun, or lun mar mer jeu ven sam dim": (
        "les jours sont lun mar mer jeu ven sam dim"
    ),
    'such as "mon-fri 07:45"': "par exemple « lun-ven 7h45 »",
    # -- a site
    "site {site} cannot be reached: {why}": "le site {site} est injoignable : {why}",
    "see whether it runs, and the url in its file: essaim doctor --site {site}": (
        "vérifiez qu'il fonctionne et l'url dans son fichier : essaim doctor --site {site}"
    ),
    "site {site} refuses the account {who}: {why}": "le site {site} refuse le compte {who} : {why}",
    "see whether the token exists, is not expired, and its secret is the right one": (
        "vérifiez que le jeton existe, n'a pas expiré, et que son secret est le bon"
    ),
    "image {image}: there is no {kind} template {name}": (
        "image {image} : il n'y a pas de modèle {kind} {name}"
    ),
    "image {image}: there is no template {name}": "image {image} : il n'y a pas de modèle {name}",
    "the site has: {names}": "le site a : {names}",
    "make one, or let the account see it: VM.Audit and VM.Clone on it": (
        "créez-le, ou laissez le compte le voir : VM.Audit et VM.Clone"
    ),
    "image {image}: builder {builder} makes nothing a Proxmox site could use": (
        "l'image {image} (builder {builder}) ne convient pas à un site Proxmox"
    ),
    "name a template: --template NAME; {offered}": (
        "indiquez un modèle : --template NOM ; {offered}"
    ),
    "{url}: connection refused": "{url} : connexion refusée",
    "{url}: no answer": "{url} : pas de réponse",
    "{url}: no route to host": "{url} : pas de route jusqu'à lui",
    "{url}: network is unreachable": "{url} : réseau inaccessible",
    "{url}: name or service not known": "{url} : nom inconnu",
    "authentication failure": "authentification refusée",
    # -- what is waited for
    "waits for a {slot} {used}": "attend {slot} {used}",
    "is still being made": "encore en création",
    "is being made": "en création",
    "is being removed elsewhere": "en cours de suppression ailleurs",
    "is being started elsewhere": "en cours de démarrage ailleurs",
    "waits for node {node}, which is away": "attend le nœud {node}, qui ne répond pas",
    "removing the old disk": "suppression de l'ancien disque",
    "clones {template}": "copie de {template}",
    "enrol": "création",
    "mend": "réparation",
    "reset": "remise à neuf",
    "wake": "démarrage",
    "halt": "arrêt",
    "withdraw": "retrait",
    "remove": "suppression",
    "keep": "instantané",
    "revert": "retour à un instantané",
    "unkeep": "suppression d'un instantané",
    # -- why something is planned
    "to give it back: essaim students apply, with them on the roster": (
        "pour la rendre : essaim students apply, avec la personne dans la promotion"
    ),
    "{few} and {count} more": "{few} et {count} autres",
    "new": "nouveau",
    "back on the roster": "de retour dans la promotion",
    "failed before": "avait échoué",
    "not there": "absente",
    "begun and not finished": "commencée et pas finie",
    "not in DHCP": "pas dans le DHCP",
    "no name in DNS": "pas de nom dans le DNS",
    "no desktop": "pas de bureau",
    "off": "éteinte",
    "its grace is over": "délai écoulé",
    "gone from the roster": "plus dans la promotion",
    "made from another image": "issue d'une autre image",
    # -- commands that cannot be meant
    "Missing argument {name}.": "il manque {name}",
    "Missing option {name}.": "il manque l'option {name}",
    "Missing command.": "il manque une commande",
    "No such command {name}.": "il n'y a pas de commande {name}",
    "No such command {name}. Did you mean {near}?": (
        "il n'y a pas de commande {name} ; vouliez-vous dire {near} ?"
    ),
    "No such option: {name}": "il n'y a pas d'option {name}",
    "No such option: {name} Did you mean {near}?": (
        "il n'y a pas d'option {name} ; vouliez-vous dire {near} ?"
    ),
    "No such option: {name} (Possible options: {near})": (
        "il n'y a pas d'option {name} ; il y a : {near}"
    ),
    "Got unexpected extra argument(s) ({names})": "argument(s) en trop : {names}",
    "Option {name} requires an argument.": "l'option {name} attend une valeur",
    "Invalid value for {name}: {why}": "{name} : {why}",
    "Invalid value: {why}": "{why}",
    # -- accounts
    "the name {name} is taken": "le nom {name} est déjà pris",
    "choose another": "choisissez-en un autre",
    "wrong name or password": "nom ou mot de passe incorrect",
    "try again, or sign up": "réessayez, ou créez un compte",
    "this session is over": "cette session est terminée",
    "log in again": "reconnectez-vous",
    "this is a mistake of the server": "c'est une erreur du serveur",
    "see the server's log": "voyez le journal du serveur",
}
