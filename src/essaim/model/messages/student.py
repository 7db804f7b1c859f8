"""Sentences about how a student gets into their machine: at the gateway and on the command line."""

from __future__ import annotations

from collections.abc import Mapping

#: Key → (English, French).  Part of `words.WORDS`.
STUDENT: Mapping[str, tuple[str, str]] = {
    # -- gateway: shown in both languages; `lease` is the machine's name there
    "gateway.student_ended": (
        "{lease}: this machine is not yours any more",
        "{lease} : cette machine n'est plus à vous",
    ),
    "gateway.student_expired": (
        "{lease}: this machine is not yours any more",
        "{lease} : cette machine n'est plus à vous",
    ),
    "gateway.student_over": (
        "{lease}: this session was ended",
        "{lease} : la session a été fermée",
    ),
    "gateway.student_key": (
        "{lease} has another key now: log in with that one",
        "{lease} a maintenant une autre clé : connectez-vous avec celle-là",
    ),
    "gateway.student_unheld": (
        "{lease} cannot be entered now: try again in a moment",
        "{lease} n'est pas accessible pour l'instant : réessayez dans un instant",
    ),
    "gateway.student_preparing": (
        "{lease}: your machine is being prepared: try again in a moment",
        "{lease} : votre machine se prépare : réessayez dans un instant",
    ),
    "gateway.student_stopped": (
        "{lease}: your machine is stopped: essaim mine start",
        "{lease} : votre machine est éteinte : essaim mine start",
    ),
    "gateway.student_no_account": (
        "{lease}: there is no account for you on this machine: ask your teacher",
        "{lease} : vous n'avez pas de compte sur cette machine : voyez votre enseignant",
    ),
    "gateway.student_lost": (
        "{lease}: your machine was stopped: essaim mine start",
        "{lease} : votre machine a été éteinte : essaim mine start",
    ),
    "gateway.student_moved": (
        "{lease}: your machine was made anew: log in again",
        "{lease} : votre machine a été refaite : reconnectez-vous",
    ),
    "gateway.student_broken": (
        "the connection to {lease} was lost: log in again",
        "la connexion à {lease} est perdue : reconnectez-vous",
    ),
    "gateway.student_stranger": (
        "{lease}: the machine did not prove who it is: ask your teacher",
        "{lease} : la machine n'a pas prouvé son identité : voyez votre enseignant",
    ),
    "gateway.student_unreached": (
        "{lease}: the gateway cannot reach your machine now: try again ({why})",
        "{lease} : la passerelle ne peut pas joindre votre machine : réessayez ({why})",
    ),
    # -- students' own machines
    "seat.key_own": (
        "only the student and operators may set this key",
        "seuls l'étudiant et les opérateurs peuvent changer cette clé",
    ),
    "seat.key_bad": (
        "this is not one SSH public key: send one line of ~/.ssh/*.pub",
        "ce n'est pas une clé SSH publique : envoyez une ligne de ~/.ssh/*.pub",
    ),
    "seat.key_sent": (
        "{machine} opens with the key {fingerprint}",
        "{machine} s'ouvre avec la clé {fingerprint}",
    ),
    "seat.key_later": (
        "the key {fingerprint} is kept; {machine} is stopped and takes it when it starts",
        "la clé {fingerprint} est enregistrée ; {machine} est éteinte et la prendra au démarrage",
    ),
    "seat.key_other": (
        "{machine} knows another key ({known}) than {path}: essaim mine key {path}",
        "{machine} connaît une autre clé ({known}) que {path} : essaim mine key {path}",
    ),
    "seat.stopped": (
        "{machine} is stopped: essaim mine start",
        "{machine} est éteinte : essaim mine start",
    ),
    "seat.no_entry": (
        "{machine} cannot be entered over SSH: {why}",
        "{machine} n'est pas accessible par SSH : {why}",
    ),
    "seat.no_account": (
        "no account for you was made on it: ask your teacher",
        "aucun compte n'y a été créé pour vous : voyez votre enseignant",
    ),
}
