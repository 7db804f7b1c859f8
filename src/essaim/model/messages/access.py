"""Sentences about getting into machines: copying, the gateway's refusals, renting."""

from __future__ import annotations

from collections.abc import Mapping

#: Key → (English, French).  Part of `words.WORDS`.
ACCESS: Mapping[str, tuple[str, str]] = {
    # -- essaim cp
    "copy.two": (
        "name what to copy and where to: essaim cp FILE MACHINE:PATH",
        "indiquez quoi copier et vers où : essaim cp FICHIER MACHINE:CHEMIN",
    ),
    "copy.local": (
        "none of these is on a machine: write MACHINE:PATH (slurm/controller:job.sh)",
        "rien de cela n'est sur une machine : écrivez MACHINE:CHEMIN (slurm/controller:job.sh)",
    ),
    "copy.again": (
        "type the same command again: it goes on where it stopped",
        "retapez la même commande : la copie reprendra où elle s'est arrêtée",
    ),
    "copy.interrupted": (
        "stopped; the same command with -u goes on from here",
        "interrompu ; la même commande avec -u reprendra d'ici",
    ),
    "copy.done": ("{count} copied, {size} in {took}", "{count} copié(s), {size} en {took}"),
    "copy.skipped": (" ({count} there already)", " ({count} déjà là)"),
    "copy.no_such_file": ("no such file or directory", "fichier ou dossier introuvable"),
    "copy.denied": ("permission denied", "permission refusée"),
    "copy.no_space": ("no space left", "plus d'espace disponible"),
    "copy.not_a_directory": ("not a directory", "n'est pas un dossier"),
    "copy.is_a_directory": ("is a directory", "est un dossier"),
    "copy.changed": ("changed while it was copied", "a changé pendant la copie"),
    # -- gateway: why a lease leads nowhere, to who holds its key
    "gateway.released": (
        "lease {lease} ended on {when}: you released it",
        "la location {lease} s'est terminée le {when} : vous l'avez rendue",
    ),
    "gateway.released_by": (
        "lease {lease} ended on {when}: {who} released it",
        "la location {lease} s'est terminée le {when} : {who} y a mis fin",
    ),
    "gateway.ran_out": (
        "lease {lease} expired on {when}; essaim rent gets another",
        "la location {lease} a expiré le {when} ; essaim rent en obtient une autre",
    ),
    "gateway.over_because": (
        "lease {lease} ended on {when}: {why}",
        "la location {lease} s'est terminée le {when} : {why}",
    ),
    "gateway.queued": (
        "lease {lease} waits in the queue: essaim leases {lease} shows its place",
        "la location {lease} est en file d'attente : essaim leases {lease} montre sa place",
    ),
    "gateway.one_machine": (
        "lease {lease} has {count} machine: there is no machine {number}",
        "la location {lease} a {count} machine : il n'y a pas de machine {number}",
    ),
    "gateway.machines": (
        "lease {lease} has {count} machines: there is no machine {number}",
        "la location {lease} a {count} machines : il n'y a pas de machine {number}",
    ),
    # -- renting what there is not
    "rent.too_large": (
        "no machine is that large: the largest has {most_cores} cores and {most_memory} MiB",
        "aucune machine n'est si grande : la plus grande a {most_cores} cœurs, {most_memory} Mio",
    ),
    "rent.too_large_one": (
        "no machine is that large: the largest has {most_cores} core and {most_memory} MiB",
        "aucune machine n'est si grande : la plus grande a {most_cores} cœur, {most_memory} Mio",
    ),
    "rent.too_many": (
        "you ask for {count} machines, and there are {able} of the kind, free or not",
        "vous demandez {count} machines, et il en existe {able} de ce genre, libres ou non",
    ),
    "rent.no_kind": (
        "there is no machine of the kind: {kind}",
        "il n'y a pas de machine de ce genre : {kind}",
    ),
    "rent.less": (
        "ask for less, or an operator to add machines",
        "demandez moins, ou des machines de plus à un opérateur",
    ),
}
