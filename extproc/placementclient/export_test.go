package placementclient

// WireLesson is wireLesson.
var WireLesson = wireLesson
