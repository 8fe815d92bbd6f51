package placementclient

// WireLesson exports wireLesson for tests.
var WireLesson = wireLesson
