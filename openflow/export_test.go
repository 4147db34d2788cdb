package openflow

// Messages is the number of the next message, which takes it.
func (s *Switch) Messages() uint32 { return s.conn.Reserve(1) }

// Lost is why the connection is over.
func (s *Switch) Lost() error { return s.conn.Reason() }

// Unknown is an action that no flow of Fairlead's has.
func Unknown(text string) Action { return unknownAction(text) }
