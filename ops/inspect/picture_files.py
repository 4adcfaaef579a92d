"""The pictures in a folder, and the clients of a site that they belong to. Imports nothing heavy."""

from pathlib import Path

from fedil_model.errors import DataError, SettingError


def files_in(folder: Path) -> list[Path]:
    """With its subfolders. Sorted, so that an index means the same picture on every machine."""
    _check_folder(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path, folder))
    if not files:
        raise DataError(f"there are no pictures in {folder}")
    return files


def pictures_of_clients(folder: Path, site: str, clients: range) -> dict[int, list[Path]]:
    """From a folder for each client, or dealt out one by one from a folder without subfolders."""
    _check_folder(folder)
    visible = sorted(path for path in folder.iterdir() if not _hidden(path, folder))
    folders = [path for path in visible if path.is_dir()]
    if not folders:
        return _dealt(files_in(folder), folder, site, clients)
    if len(folders) != len(visible):
        loose = next(path for path in visible if path not in folders)
        raise DataError(
            f"{folder} holds both folders and files, such as {folders[0].name} and {loose.name}: "
            "put every picture into its client's folder, or all of them side by side"
        )
    return _by_name(folders, folder, site, clients)


def _dealt(files: list[Path], folder: Path, site: str, clients: range) -> dict[int, list[Path]]:
    if len(files) < len(clients):
        raise DataError(
            f"{folder} has fewer pictures ({len(files)}) than site {site} has clients ({len(clients)}): "
            "every client needs one at least"
        )
    # One by one, not in blocks: names often follow a class or a date, and that would make clients unlike.
    return {client: files[place :: len(clients)] for place, client in enumerate(clients)}


def _by_name(folders: list[Path], folder: Path, site: str, clients: range) -> dict[int, list[Path]]:
    own = {str(client): client for client in clients}
    named = f"its clients are {clients[0]} to {clients[-1]}, each with a folder of that name"
    for path in folders:
        if path.name not in own:
            raise DataError(f"{path} is no client of site {site}: {named}")
    missing = sorted(set(own.values()) - {own[path.name] for path in folders})
    if missing:
        raise DataError(f"{folder} has no folder for client {missing[0]} of site {site}: {named}")
    return {own[path.name]: files_in(path) for path in sorted(folders, key=lambda path: own[path.name])}


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder")
