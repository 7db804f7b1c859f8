"""Signing up, logging in, titles of the API's problems.  Key → (English, French)."""

from __future__ import annotations

from collections.abc import Mapping

ACCOUNTS: Mapping[str, tuple[str, str]] = {
    # -- command line: who you are
    "password.ask": ("Password: ", "Mot de passe : "),
    "password.again": ("The same again: ", "Encore une fois : "),
    "signup.done": (
        "{name} is signed up on {server}",
        "{name} a maintenant un compte sur {server}",
    ),
    "signup.pending": (
        "{name} is signed up on {server} and can log in once an administrator has approved it",
        "{name} a un compte sur {server} ; un administrateur doit l'approuver avant la connexion",
    ),
    "signup.invited": (
        "sign-up here needs an invite code",
        "l'inscription demande ici un code d'invitation",
    ),
    "signup.code": (
        "this invite code is wrong, used up or expired",
        "ce code d'invitation est faux, épuisé ou expiré",
    ),
    "signup.ask": (
        "ask an administrator or your teacher for one: essaim signup NAME --invite CODE",
        "demandez-en un à un administrateur ou enseignant : essaim signup NOM --invite CODE",
    ),
    "signup.closed": ("sign-up is closed here", "les inscriptions sont fermées ici"),
    "signup.closed_hint": (
        "ask an administrator",
        "adressez-vous à un administrateur",
    ),
    "login.pending": (
        "this account waits for approval by an administrator",
        "ce compte attend l'approbation d'un administrateur",
    ),
    "password.breached": (
        "this password is in a list of stolen passwords",
        "ce mot de passe figure dans une liste de mots de passe volés",
    ),
    "login.done": ("{name} is logged in on {server}", "{name} : session ouverte sur {server}"),
    "logout.done": ("logged out of {server}", "session fermée sur {server}"),
    "logout.nobody": ("nobody is logged in", "aucune session n'est ouverte"),
    "login.none": ("you are not logged in", "aucune session n'est ouverte"),
    "login.over": ("your session is over", "votre session est terminée"),
    "login.how": (
        "essaim login NAME --server URL; without an account: essaim signup NAME --server URL",
        "essaim login NOM --server URL ; sans compte : essaim signup NOM --server URL",
    ),
    "login.again": (
        "this needs your password once more, {name}",
        "cela demande encore une fois votre mot de passe, {name}",
    ),
    "sessions.ended": ("{count} sessions ended", "{count} sessions fermées"),
    "sessions.which": (
        "say which session: essaim sessions lists them; or --all",
        "dites quelle session : essaim sessions les montre ; ou --all",
    ),
    "tokens.once": (
        "shown only now; programs read it from ESSAIM_TOKEN",
        "montré une seule fois ; les programmes le lisent dans ESSAIM_TOKEN",
    ),
    "tokens.revoked": ("{id} is revoked", "{id} est révoqué"),
    "login.wrong": ("wrong name or password", "nom ou mot de passe incorrect"),
    "logout.here": (
        "logged out here; {server} could not be told, the session ends there by itself",
        "session fermée ici ; {server} n'a pas pu être prévenu, elle y finira d'elle-même",
    ),
    "password.needed": ("this needs your password", "cela demande votre mot de passe"),
    "password.not_yours": (
        "this is not your password",
        "ce n'est pas votre mot de passe",
    ),
    "password.prove": (
        "log in again: essaim login NAME; programs send it as `current`",
        "ouvrez une nouvelle session : essaim login NOM ; un programme l'envoie dans `current`",
    ),
    "password.short": (
        "a password has at least {shortest} characters",
        "un mot de passe a au moins {shortest} caractères",
    ),
    "password.weak": ("this password would be guessed", "ce mot de passe serait vite deviné"),
    "password.sentence": (
        "use a passphrase: several words",
        "choisissez une phrase de passe : plusieurs mots",
    ),
    "ask.stopped": ("nothing was done", "rien n'a été fait"),
    "usage.help": ("see {command}", "voyez {command}"),
    "ask.nobody": ("nobody here to ask: say --yes", "personne à qui demander : ajoutez --yes"),
    "password.differ": ("these are two passwords", "les deux mots de passe diffèrent"),
    "password.done": ("your password is changed", "votre mot de passe a été changé"),
    "whoami.quota": (
        "{machines} machines at a time, {hours} machine-hours in thirty days",
        "{machines} machines à la fois, {hours} heures-machine en trente jours",
    ),
    "server.away": ("{server} does not answer: {reason}", "{server} ne répond pas : {reason}"),
    "server.look": (
        "is it the right address? essaim login NAME --server URL chooses another",
        "est-ce la bonne adresse ? essaim login NOM --server URL en choisit une autre",
    ),
    "server.odd": (
        "{server} answers, but not as Essaim does",
        "{server} répond, mais pas comme Essaim",
    ),
    "server.again": ("trying again", "nouvel essai"),
    "server.wait": ("wait {seconds} s", "attendez {seconds} s"),
    "server.none": ("{server} is no server's address", "{server} n'est pas l'adresse d'un serveur"),
    "server.clear": (
        "{server} would carry your password in the clear",
        "{server} transporterait votre mot de passe en clair",
    ),
    "server.clear_hint": (
        "use https://, or --insecure where nobody can listen",
        "utilisez https://, ou --insecure là où personne ne peut écouter",
    ),
    # -- titles of the API's problems
    "problem.400": ("Bad Request", "Requête illisible"),
    "problem.401": ("Unauthorized", "Non authentifié"),
    "problem.403": ("Forbidden", "Interdit"),
    "problem.404": ("Not Found", "Introuvable"),
    "problem.405": ("Method Not Allowed", "Méthode non permise"),
    "problem.409": ("Conflict", "Refusé en l'état"),
    "problem.413": ("Content Too Large", "Requête trop grande"),
    "problem.422": ("Unprocessable Content", "Requête incorrecte"),
    "problem.429": ("Too Many Requests", "Trop d'essais"),
    "problem.500": ("Internal Server Error", "Erreur du serveur"),
    "problem.503": ("Service Unavailable", "Pas maintenant"),
}
