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
    "login.done": ("{name} is logged in on {server}", "{name} : session ouverte sur {server}"),
    "logout.done": ("logged out of {server}", "session fermée sur {server}"),
    "logout.nobody": ("nobody is logged in", "aucune session n'est ouverte"),
    "login.none": ("you are not logged in", "aucune session n'est ouverte"),
    "login.over": ("your session is over", "votre session est terminée"),
    "login.how": (
        "essaim login NAME --server URL; without an account: essaim signup NAME --server URL",
        "essaim login NOM --server URL ; sans compte : essaim signup NOM --server URL",
    ),
    "login.wrong": ("wrong name or password", "nom ou mot de passe incorrect"),
    "logout.here": (
        "logged out here; {server} could not be told, the session ends there by itself",
        "session fermée ici ; {server} n'a pas pu être prévenu, elle y finira d'elle-même",
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
