package talk

// WireLesson is wireLesson.
var WireLesson = wireLesson
