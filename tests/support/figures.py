"""What tests of figures look for."""


def found(figure, gid):
    return figure.findobj(lambda artist: artist.get_gid() == gid)
