package inbox

// cloudEventsPrefixes are the ways in which producers write an event's
// attributes into AMQP headers: the two of the CloudEvents binding, the HTTP one
// that bridges copy, and the bare names that Knative sends.
var cloudEventsPrefixes = [...]string{"cloudEvents:", "cloudEvents_", "ce-", ""}

// cloudEventID identifies an event by its source and id, which the standard
// makes unique only together. Headers go before the body: the payload of an
// event in binary mode may be JSON with members of the same names.
func cloudEventID(m *Message, doc *document) (raw string, ok bool) {
	for _, prefix := range cloudEventsPrefixes {
		source := idText(m.Headers.lookup(prefix + "source"))
		id := idText(m.Headers.lookup(prefix + "id"))
		if source == "" || id == "" {
			continue
		}
		// Without a prefix these may be anybody's headers; every event has this one.
		if prefix == "" && idText(m.Headers.lookup("specversion")) == "" {
			continue
		}
		return join(source, id), true
	}
	source, id := doc.scalar("/source"), doc.scalar("/id")
	if source == "" || id == "" || doc.scalar("/specversion") == "" {
		return "", false
	}
	return join(source, id), true
}
